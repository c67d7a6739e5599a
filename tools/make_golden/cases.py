"""The tiny checkpoints of tests/fixtures: published config fields with small sizes, and seeded random weights in published names.
Weights are drawn so that logits are well spread and no activation dies; nothing here runs a model."""

import numpy as np

YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 1.0}
COMMON = {"attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
          "initializer_range": 0.02, "tie_word_embeddings": False, "transformers_version": "4.46.3", "use_cache": True,
          "moe_layer_freq": 1, "pretraining_tp": 1}
V3 = COMMON | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "scoring_func": "sigmoid",
               "topk_method": "noaux_tc", "norm_topk_prob": True, "rms_norm_eps": 1e-6, "rope_theta": 10000, "ep_size": 1,
               "max_position_embeddings": 163840, "rope_scaling": YARN, "num_nextn_predict_layers": 0}
V2 = COMMON | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "scoring_func": "softmax",
               "norm_topk_prob": False, "rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 163840,
               "aux_loss_alpha": 0.001, "seq_aux": True, "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}


def sizes(hidden, layers, vocab, heads, q_lora, kv_lora, nope, rope, v, dense, moe, experts, shared, top, groups=1, kept=1, first=1):
    return {"hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": vocab, "num_attention_heads": heads,
            "num_key_value_heads": heads, "q_lora_rank": q_lora, "kv_lora_rank": kv_lora, "qk_nope_head_dim": nope,
            "qk_rope_head_dim": rope, "v_head_dim": v, "intermediate_size": dense, "moe_intermediate_size": moe,
            "n_routed_experts": experts, "n_shared_experts": shared, "num_experts_per_tok": top, "n_group": groups,
            "topk_group": kept, "first_k_dense_replace": first}


# name -> (config, storage type of the weights, number of shards, seed)
CASES = {
    "v3": (V3 | sizes(48, 3, 131, 4, 24, 24, 16, 8, 16, 64, 12, 12, 1, 4, 4, 2) | {"routed_scaling_factor": 2.5, "torch_dtype": "float32"},
           "F32", 2, 11),
    "v3-bf16": (V3 | sizes(64, 3, 160, 4, 32, 32, 16, 16, 16, 96, 16, 16, 1, 4, 4, 2)
                | {"routed_scaling_factor": 2.5, "torch_dtype": "bfloat16", "num_nextn_predict_layers": 1}, "BF16", 1, 12),
    "v3-fp8": (V3 | sizes(136, 2, 72, 3, 72, 132, 24, 16, 20, 200, 40, 4, 1, 2, 2, 1)
               | {"routed_scaling_factor": 2.5, "torch_dtype": "bfloat16", "quantization_config": {
                   "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}}, "FP8", 2, 13),
    # As V3.1 is published: the scales of weights and activations are powers of two.
    "v3.1": (V3 | sizes(136, 2, 72, 3, 72, 132, 24, 16, 20, 200, 40, 4, 1, 2, 2, 1)
             | {"routed_scaling_factor": 2.5, "torch_dtype": "bfloat16", "quantization_config": {
                 "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                 "weight_block_size": [128, 128]}}, "FP8", 1, 20),
    "v2-lite": (V2 | sizes(48, 2, 120, 4, None, 24, 16, 16, 16, 64, 12, 10, 2, 3)
                | {"routed_scaling_factor": 1.0, "topk_method": "greedy", "torch_dtype": "float32"}, "F32", 1, 14),
    "v2": (V2 | sizes(40, 2, 120, 4, 20, 24, 8, 16, 8, 64, 12, 12, 2, 3, 4, 2)
           | {"routed_scaling_factor": 4.0, "topk_method": "group_limited_greedy", "torch_dtype": "float32"}, "F32", 1, 15),
    "v2-f16": (V2 | sizes(40, 2, 120, 4, 20, 24, 8, 16, 8, 64, 12, 12, 2, 3, 4, 2)
               | {"routed_scaling_factor": 4.0, "topk_method": "group_limited_greedy", "torch_dtype": "float16"}, "F16", 1, 20),
    "moonlight": ({k: v for k, v in V3.items() if k != "rope_scaling"}
                  | sizes(48, 2, 128, 4, None, 24, 16, 16, 16, 72, 12, 10, 2, 3)
                  | {"routed_scaling_factor": 2.446, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "max_position_embeddings": 8192,
                     "torch_dtype": "float32"}, "F32", 1, 16),
    "kimi-k2": (V3 | sizes(40, 2, 128, 8, 20, 24, 8, 8, 8, 64, 8, 32, 1, 6)
                | {"model_type": "kimi_k2", "routed_scaling_factor": 2.827, "rope_theta": 50000.0, "max_position_embeddings": 131072,
                   "rope_scaling": YARN | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}, "torch_dtype": "float32"}, "F32", 1, 17),
    # Nothing here is a power of two or a multiple of 16; the newer rope_parameters and dtype keys; an mscale pair that does not cancel.
    "odd": ({k: v for k, v in V3.items() if k not in ("rope_scaling", "rope_theta")}
            | sizes(72, 2, 151, 3, 44, 40, 20, 8, 12, 76, 28, 5, 1, 2)
            | {"routed_scaling_factor": 1.7, "dtype": "float32", "transformers_version": "5.24.0", "norm_topk_prob": True,
               "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
                                   "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 1.0},
               "max_position_embeddings": 256}, "F32", 1, 18),
}
LENGTHS = (1, 37, 130)


def mlp(prefix, hidden, inner):
    return {f"{prefix}.gate_proj.weight": (inner, hidden), f"{prefix}.up_proj.weight": (inner, hidden),
            f"{prefix}.down_proj.weight": (hidden, inner)}


def shapes(c):
    """Published tensor names and shapes of a config, in file order."""
    h, n, kv, rope = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    qk, v = c["qk_nope_head_dim"] + rope, c["v_head_dim"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], h)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        a = f"{p}.self_attn"
        if c["q_lora_rank"] is None:
            out[f"{a}.q_proj.weight"] = (n * qk, h)
        else:
            out |= {f"{a}.q_a_proj.weight": (c["q_lora_rank"], h), f"{a}.q_a_layernorm.weight": (c["q_lora_rank"],),
                    f"{a}.q_b_proj.weight": (n * qk, c["q_lora_rank"])}
        out |= {f"{a}.kv_a_proj_with_mqa.weight": (kv + rope, h), f"{a}.kv_a_layernorm.weight": (kv,),
                f"{a}.kv_b_proj.weight": (n * (c["qk_nope_head_dim"] + v), kv), f"{a}.o_proj.weight": (h, n * v)}
        if i < c["first_k_dense_replace"]:
            out |= mlp(f"{p}.mlp", h, c["intermediate_size"])
        else:
            out[f"{p}.mlp.gate.weight"] = (c["n_routed_experts"], h)
            if c["topk_method"] == "noaux_tc":
                out[f"{p}.mlp.gate.e_score_correction_bias"] = (c["n_routed_experts"],)
            for e in range(c["n_routed_experts"]):
                out |= mlp(f"{p}.mlp.experts.{e}", h, c["moe_intermediate_size"])
            out |= mlp(f"{p}.mlp.shared_experts", h, c["moe_intermediate_size"] * c["n_shared_experts"])
        out |= {f"{p}.input_layernorm.weight": (h,), f"{p}.post_attention_layernorm.weight": (h,)}
    return out | {"model.norm.weight": (h,), "lm_head.weight": (c["vocab_size"], h)}


def draw(name, shape, rng):
    """One tensor in FP32; the spread depends on what it is."""
    if name.endswith("e_score_correction_bias"):
        return (0.15 * rng.standard_normal(shape)).astype(np.float32)
    if len(shape) == 1:
        return (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
    gain = 1.0
    if name == "model.embed_tokens.weight":
        return rng.standard_normal(shape).astype(np.float32)
    if name.endswith(("mlp.gate.weight", "q_proj.weight", "q_b_proj.weight")):
        gain = 1.5
    if name == "lm_head.weight":
        gain = 3.0
    return (gain * rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)


def weights(config, seed):
    rng = np.random.default_rng(seed)
    return {name: draw(name, shape, rng) for name, shape in shapes(config).items()}
