"""Writes a trained state as an ordinary Hugging Face folder in DeepSeek-V3's names, weights in BF16.
Usage: python export.py STATE.pt OUT_DIR [--raw]; without --raw the averaged weights are taken."""

import argparse
import json
import pathlib

import safetensors.torch as st
import torch

import net
import train


def load(path, raw=False):
    """The trained model, its parameters rounded to BF16."""
    state = torch.load(path, weights_only=False)
    model = net.Net(net.Shape(**state["shape"]))
    flat = train.Flat(list(model.parameters()))
    flat.point((state["master"] if raw else state["average"]).bfloat16())
    for moe, bias in zip(model.moes(), state["bias"]):
        moe.bias.copy_(bias)
    return model.eval(), state


def split_mlp(prefix, mlp):
    gate, up = mlp.gate_up.weight.chunk(2)
    return {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up, f"{prefix}.down_proj.weight": mlp.down_proj.weight}


def layer_tensors(prefix, layer):
    out = {f"{prefix}.{n}": p for n, p in layer.named_parameters() if not n.startswith("mlp.")}
    if isinstance(layer.mlp, net.Mlp):
        return out | split_mlp(f"{prefix}.mlp", layer.mlp)
    moe, inner = layer.mlp, layer.mlp.s.moe_intermediate_size
    out |= {f"{prefix}.mlp.gate.weight": moe.gate_weight, f"{prefix}.mlp.gate.e_score_correction_bias": moe.bias}
    for e in range(moe.s.n_routed_experts):
        at = f"{prefix}.mlp.experts.{e}"
        out |= {f"{at}.gate_proj.weight": moe.experts_in[e, :, :inner].t(), f"{at}.up_proj.weight": moe.experts_in[e, :, inner:].t(),
                f"{at}.down_proj.weight": moe.experts_out[e].t()}
    return out | split_mlp(f"{prefix}.mlp.shared_experts", moe.shared)


def tensors(model):
    out = {"model.embed_tokens.weight": model.embed}
    for i, layer in enumerate(model.layers):
        out |= layer_tensors(f"model.layers.{i}", layer)
    out |= {"model.norm.weight": model.norm.weight, "lm_head.weight": model.head}
    if model.mtp is not None:
        at, mtp = f"model.layers.{len(model.layers)}", model.mtp
        out |= layer_tensors(at, mtp.layer)
        out |= {f"{at}.enorm.weight": mtp.enorm.weight, f"{at}.hnorm.weight": mtp.hnorm.weight,
                f"{at}.eh_proj.weight": mtp.eh_proj.weight, f"{at}.shared_head.norm.weight": mtp.norm.weight,
                f"{at}.embed_tokens.weight": model.embed, f"{at}.shared_head.head.weight": model.head}
    keep = ("e_score_correction_bias",)
    return {k: (v.detach().float() if k.endswith(keep) else v.detach().bfloat16()).clone().contiguous() for k, v in out.items()}


def config(shape):
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
        "eos_token_id": 1, "pad_token_id": 2, "ep_size": 1, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 8192, "model_type": "deepseek_v3", "moe_layer_freq": 1, "norm_topk_prob": True,
        "num_key_value_heads": shape["num_attention_heads"], "rope_scaling": None, "scoring_func": "sigmoid",
        "tie_word_embeddings": False, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.46.3",
        "use_cache": True} | shape


def main():
    p = argparse.ArgumentParser()
    p.add_argument("state", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--raw", action="store_true")
    args = p.parse_args()
    model, state = load(args.state, args.raw)
    args.out.mkdir(parents=True, exist_ok=True)
    st.save_file(tensors(model), args.out / "model.safetensors", metadata={"format": "pt"})
    (args.out / "model.safetensors").chmod(0o644)
    generation = {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "do_sample": False,
                  "transformers_version": "4.46.3"}
    (args.out / "config.json").write_text(json.dumps(config(state["shape"]), indent=2, sort_keys=True) + "\n")
    (args.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    print(f"step {state['step']}: {sum(p.numel() for p in model.parameters())} parameters")


if __name__ == "__main__":
    main()
