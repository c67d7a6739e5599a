"""Checkpoints for tests: reading and writing safetensors without a library, and small random models of any shape."""
import array
import json
import pathlib
import random
import shutil
import struct

from conftest import ROOT

FIXTURES = ROOT / "tests/fixtures"
DEMO = ROOT / "models/demo"


def read_header(path):
    """({name: {dtype, shape, data_offsets}}, data bytes) of a safetensors file."""
    content = pathlib.Path(path).read_bytes()
    length, = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    return header, content[8 + length:]


def write_header(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_tensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    write_header(path, header, data)


def add_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder)


def copy_fixture(name, folder):
    """The fixture's checkpoint in a folder of its own, without the expected values and with a tokenizer."""
    shutil.copytree(FIXTURES / name, folder, ignore=shutil.ignore_patterns("expected*"))
    add_tokenizer(folder)
    return folder


def bf16(values):
    floats = array.array("f", values)
    return array.array("H", [bits >> 16 for bits in array.array("I", floats.tobytes())]).tobytes()


def mlp_shapes(prefix, hidden, width):
    return {f"{prefix}.gate_proj.weight": (width, hidden), f"{prefix}.up_proj.weight": (width, hidden),
            f"{prefix}.down_proj.weight": (hidden, width)}


def checkpoint_shapes(c):
    """Names and shapes of a DeepSeek-V2 or V3 checkpoint without q_lora, as its config says."""
    hidden, heads, latent = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "lm_head.weight": (c["vocab_size"], hidden),
              "model.norm.weight": (hidden,)}
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.input_layernorm.weight": (hidden,), f"{layer}.post_attention_layernorm.weight": (hidden,),
                   f"{layer}.self_attn.q_proj.weight": (heads * (nope + rope), hidden),
                   f"{layer}.self_attn.kv_a_proj_with_mqa.weight": (latent + rope, hidden),
                   f"{layer}.self_attn.kv_a_layernorm.weight": (latent,),
                   f"{layer}.self_attn.kv_b_proj.weight": (heads * (nope + v), latent),
                   f"{layer}.self_attn.o_proj.weight": (hidden, heads * v)}
        if i < c["first_k_dense_replace"]:
            shapes |= mlp_shapes(f"{layer}.mlp", hidden, c["intermediate_size"])
            continue
        shapes[f"{layer}.mlp.gate.weight"] = (c["n_routed_experts"], hidden)
        if c["topk_method"] == "noaux_tc":
            shapes[f"{layer}.mlp.gate.e_score_correction_bias"] = (c["n_routed_experts"],)
        shapes |= mlp_shapes(f"{layer}.mlp.shared_experts", hidden, c["moe_intermediate_size"] * c["n_shared_experts"])
        for e in range(c["n_routed_experts"]):
            shapes |= mlp_shapes(f"{layer}.mlp.experts.{e}", hidden, c["moe_intermediate_size"])
    return shapes


def random_model(folder, seed=1, **overrides):
    """A folder with random BF16 weights of DeepSeek-V3's architecture, tiny unless told otherwise."""
    config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
              "vocab_size": 2048, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 2, "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
              "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 256, "num_experts_per_tok": 8,
              "n_shared_experts": 1, "moe_intermediate_size": 8, "intermediate_size": 64, "first_k_dense_replace": 1,
              "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
              "routed_scaling_factor": 2.5, "moe_layer_freq": 1, "max_position_embeddings": 4096, "rope_theta": 10000,
              "rope_scaling": None, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
              "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1, **overrides}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    add_tokenizer(folder)
    rng = random.Random(seed)
    tensors = {}
    for name, shape in checkpoint_shapes(config).items():
        if name.endswith("norm.weight"):
            values = [1.0] * shape[0]
        else:
            spread = 2 * shape[-1] ** -0.5
            values = [rng.uniform(-spread, spread) for _ in range(shape[0] * (shape[1] if len(shape) > 1 else 1))]
        tensors[name] = ("BF16", shape, bf16(values))
    write_tensors(folder / "model.safetensors", tensors)
    return folder
