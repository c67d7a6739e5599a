#!/usr/bin/env python3
"""Writes a synthetic checkpoint of DeepSeek-V3 architecture with random weights twice, the same numbers in both:

  FOLDER/NAME-hf/                      safetensors, as Hugging Face has it
  FOLDER/NAME-{bf16,f16}[-whole].gguf  for llama.cpp and its kin; -whole keeps kv_b in one tensor

  make_models.py {S|M|T} FOLDER [--gguf bf16,f16,bf16-whole,f16-whole]

Every weight is exact in BF16 and in F16. One tensor is in memory at a time."""
import argparse
import json
import math
import pathlib
import struct
import zlib

import gguf
import numpy as np

from shapes import SHAPES

SEED = 20250301
NORM_EPS = 1e-6
YARN = {"factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 1.0, "type": "yarn"}


def exact_halves(x):
    """F32 values rounded to what both BF16 and F16 hold: 8 significant bits, nothing below F16's last subnormal bit."""
    bits = x.view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)
    bits &= np.uint32(0xFFFF0000)
    x[np.abs(x) < 2.0 ** -17] = 0
    return x


class Weights:
    """Draws the tensors; each has a stream of its own, so that the order does not matter."""

    def __init__(self, shape):
        self.shape = shape

    def draw(self, name, size, std, mean=0.0):
        rng = np.random.Generator(np.random.SFC64([SEED, zlib.crc32(f"{self.shape.name}/{name}".encode())]))
        x = rng.standard_normal(size, dtype=np.float32)
        x *= np.float32(std)
        if mean:
            x += np.float32(mean)
        return exact_halves(x)

    def matrix(self, name, outputs, inputs):
        return self.draw(name, (outputs, inputs), 1 / math.sqrt(inputs))

    def norm(self, name, width):
        return self.draw(name, width, 0.05, 1.0)


def layer_names(shape, layer):
    """(Hugging Face name, GGUF name, kind, outputs, inputs) of a layer's tensors, in the order they are written."""
    s, hf, gg = shape, f"model.layers.{layer}.", f"blk.{layer}."
    qk = s.nope + s.rope
    yield hf + "input_layernorm", gg + "attn_norm", "norm", s.hidden, 0
    yield hf + "post_attention_layernorm", gg + "ffn_norm", "norm", s.hidden, 0
    yield hf + "self_attn.q_a_layernorm", gg + "attn_q_a_norm", "norm", s.q_lora, 0
    yield hf + "self_attn.kv_a_layernorm", gg + "attn_kv_a_norm", "norm", s.kv_lora, 0
    yield hf + "self_attn.q_a_proj", gg + "attn_q_a", "matrix", s.q_lora, s.hidden
    yield hf + "self_attn.q_b_proj", gg + "attn_q_b", "matrix", s.heads * qk, s.q_lora
    yield hf + "self_attn.kv_a_proj_with_mqa", gg + "attn_kv_a_mqa", "matrix", s.kv_lora + s.rope, s.hidden
    yield hf + "self_attn.kv_b_proj", gg + "attn_kv_b", "kv_b", s.heads * (s.nope + s.v), s.kv_lora
    yield hf + "self_attn.o_proj", gg + "attn_output", "matrix", s.hidden, s.heads * s.v
    parts = (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj"))

    def ffn(prefix, suffix, kind, width):
        for ours, theirs in parts:
            outputs, inputs = (s.hidden, width) if ours == "down" else (width, s.hidden)
            yield f"{hf}mlp.{prefix}{theirs}", f"{gg}ffn_{ours}{suffix}", kind, outputs, inputs

    if layer < s.dense_layers:
        yield from ffn("", "", "matrix", s.dense_width)
        return
    yield hf + "mlp.gate", gg + "ffn_gate_inp", "router", s.experts, s.hidden
    yield hf + "mlp.gate.e_score_correction_bias", gg + "exp_probs_b.bias", "bias", s.experts, 0
    yield from ffn("experts.{}.", "_exps", "experts", s.expert_width)
    yield from ffn("shared_experts.", "_shexp", "matrix", s.shared * s.expert_width)


def all_names(shape):
    yield "model.embed_tokens", "token_embd", "embedding", shape.vocab, shape.hidden
    yield "model.norm", "output_norm", "norm", shape.hidden, 0
    yield "lm_head", "output", "matrix", shape.vocab, shape.hidden
    for layer in range(shape.layers):
        yield from layer_names(shape, layer)


def draw(weights, shape, hf, kind, outputs, inputs):
    if kind == "norm":
        return weights.norm(hf, outputs)
    if kind == "bias":
        return weights.draw(hf, outputs, 0.02)
    if kind == "embedding":
        return weights.draw(hf, (outputs, inputs), 1.0)
    return weights.matrix(hf, outputs, inputs)


def to_bf16(x):
    return (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16)


class SafetensorsFile:
    """One file; the header is known before the first tensor, which are then written in order."""

    def __init__(self, path, entries):
        header, at = {}, 0
        for name, dtype, dims in entries:
            size = math.prod(dims) * (4 if dtype == "F32" else 2)
            header[name] = {"dtype": dtype, "shape": list(dims), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.file = open(path, "wb")
        self.file.write(struct.pack("<Q", len(text)) + text)
        self.left = [(name, dtype) for name, dtype, _ in entries]

    def write(self, name, x):
        expected, dtype = self.left.pop(0)
        assert name == expected, (name, expected)
        (x if dtype == "F32" else to_bf16(x)).tofile(self.file)

    def close(self):
        assert not self.left
        self.file.close()


def hf_entries(shape):
    for hf, _, kind, outputs, inputs in all_names(shape):
        dims = (outputs, inputs) if inputs else (outputs,)
        if kind == "experts":
            for expert in range(shape.experts):
                yield hf.format(expert) + ".weight", "BF16", dims
        else:
            yield (hf, "F32", dims) if kind == "bias" else (hf + ".weight", "BF16", dims)


def hf_config(shape):
    s = shape
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
        "vocab_size": s.vocab, "hidden_size": s.hidden, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.heads, "intermediate_size": s.dense_width,
        "q_lora_rank": s.q_lora, "kv_lora_rank": s.kv_lora, "qk_nope_head_dim": s.nope, "qk_rope_head_dim": s.rope,
        "v_head_dim": s.v, "n_routed_experts": s.experts, "num_experts_per_tok": s.top_k,
        "n_shared_experts": s.shared, "moe_intermediate_size": s.expert_width, "n_group": s.groups,
        "topk_group": s.top_groups, "first_k_dense_replace": s.dense_layers, "moe_layer_freq": 1,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "hidden_act": "silu", "rms_norm_eps": NORM_EPS, "rope_theta": 10000.0, "rope_scaling": YARN,
        "max_position_embeddings": 163840, "tie_word_embeddings": False, "attention_bias": False,
        "bos_token_id": s.vocab - 4, "eos_token_id": s.vocab - 3,
    }


def vocabulary(shape):
    """Byte-level BPE tokens: printable bytes as themselves, fillers, four control tokens last."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    stand_in = iter(range(256, 512))
    tokens = [chr(b) if b in printable else chr(next(stand_in)) for b in range(256)]
    tokens += [f"\u0120t{i}" for i in range(256, shape.vocab - 4)]
    tokens += ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
               "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"]
    kinds = [gguf.TokenType.NORMAL] * (shape.vocab - 4) + [gguf.TokenType.CONTROL] * 4
    return tokens, kinds


class GgufFile:
    def __init__(self, path, shape, variant):
        self.shape, self.half, self.whole = shape, variant.split("-")[0], variant.endswith("-whole")
        self.writer = gguf.GGUFWriter(path, "deepseek2")
        self.describe()
        for _, name, kind, outputs, inputs in all_names(shape):
            dims = (outputs, inputs) if inputs else (outputs,)
            for part, part_dims in self.split(name, kind, dims):
                self.announce(part, kind, part_dims)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_ti_data_to_file()

    def split(self, name, kind, dims):
        s = self.shape
        if kind == "experts":
            return [(name, (s.experts, *dims))]
        if kind == "kv_b" and not self.whole:
            return [(name.replace("kv_b", "k_b"), (s.heads, s.kv_lora, s.nope)),
                    (name.replace("kv_b", "v_b"), (s.heads, s.v, s.kv_lora))]
        return [(name, dims)]

    def announce(self, name, kind, dims):
        f32 = kind in ("norm", "bias", "router")
        dtype = gguf.GGMLQuantizationType.F32 if f32 else gguf.GGMLQuantizationType[self.half.upper()]
        name = name if kind == "bias" else name + ".weight"
        size = math.prod(dims) * (4 if f32 else 2)
        self.writer.add_tensor_info(name, dims, np.dtype(np.float32 if f32 else np.float16), size, raw_dtype=dtype)

    def describe(self):
        s, w = self.shape, self.writer
        w.add_name(f"synthetic-{s.name}")
        w.add_context_length(163840)
        w.add_embedding_length(s.hidden)
        w.add_block_count(s.layers)
        w.add_feed_forward_length(s.dense_width)
        w.add_head_count(s.heads)
        w.add_head_count_kv(s.heads if self.whole else 1)
        w.add_layer_norm_rms_eps(NORM_EPS)
        w.add_rope_freq_base(10000.0)
        w.add_file_type(gguf.LlamaFileType["MOSTLY_" + self.half.upper()])
        w.add_leading_dense_block_count(s.dense_layers)
        w.add_vocab_size(s.vocab)
        w.add_q_lora_rank(s.q_lora)
        w.add_kv_lora_rank(s.kv_lora)
        if self.whole:
            w.add_key_length(s.nope + s.rope)
            w.add_value_length(s.v)
        else:
            w.add_key_length(s.kv_lora + s.rope)
            w.add_value_length(s.kv_lora)
            w.add_key_length_mla(s.nope + s.rope)
            w.add_value_length_mla(s.v)
        w.add_expert_feed_forward_length(s.expert_width)
        w.add_expert_count(s.experts)
        w.add_expert_used_count(s.top_k)
        w.add_expert_shared_count(s.shared)
        w.add_expert_weights_scale(2.5)
        w.add_expert_weights_norm(True)
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_uint32("deepseek2.expert_group_count", s.groups)
        w.add_uint32("deepseek2.expert_group_used_count", s.top_groups)
        w.add_rope_dimension_count(s.rope)
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(float(YARN["factor"]))
        w.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_log_mul(0.1 * YARN["mscale_all_dim"])
        tokens, kinds = vocabulary(s)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("deepseek-v3")
        w.add_token_list(tokens)
        w.add_token_types(kinds)
        w.add_token_merges([f"{a} {b}" for a in "ab" for b in "ab"])
        w.add_bos_token_id(s.vocab - 4)
        w.add_eos_token_id(s.vocab - 3)
        w.add_pad_token_id(s.vocab - 3)

    def encode(self, x):
        return to_bf16(x).view(np.float16) if self.half == "bf16" else x.astype(np.float16)

    def write(self, kind, x):
        s = self.shape
        if kind in ("norm", "bias", "router"):
            self.writer.write_tensor_data(x)
        elif kind == "kv_b" and not self.whole:
            heads = x.reshape(s.heads, s.nope + s.v, s.kv_lora)
            self.writer.write_tensor_data(self.encode(np.ascontiguousarray(heads[:, :s.nope].transpose(0, 2, 1))))
            self.writer.write_tensor_data(self.encode(np.ascontiguousarray(heads[:, s.nope:])))
        else:
            self.writer.write_tensor_data(self.encode(x))

    def close(self):
        self.writer.close()


def make(shape, folder, variants):
    """Makes what is not there yet; files appear under their names only when complete."""
    hf_folder = folder / f"{shape.name}-hf"
    ggufs = [v for v in variants if not (folder / f"{shape.name}-{v}.gguf").exists()]
    want_hf = not (hf_folder / "model.safetensors").exists()
    if not want_hf and not ggufs:
        return
    hf_folder.mkdir(parents=True, exist_ok=True)
    (hf_folder / "config.json").write_text(json.dumps(hf_config(shape), indent=1) + "\n")
    parts = {v: folder / f"{shape.name}-{v}.gguf.part" for v in ggufs}
    outs = [GgufFile(path, shape, v) for v, path in parts.items()]
    hf_part = hf_folder / "model.part"
    hf_file = SafetensorsFile(hf_part, list(hf_entries(shape))) if want_hf else None
    weights = Weights(shape)
    for hf, _, kind, outputs, inputs in all_names(shape):
        if kind != "experts":
            x = draw(weights, shape, hf, kind, outputs, inputs)
            if hf_file:
                hf_file.write(hf if kind == "bias" else hf + ".weight", x)
            for out in outs:
                out.write(kind, x)
            continue
        stacked = np.empty((shape.experts, outputs, inputs), np.float32)
        for expert in range(shape.experts):
            stacked[expert] = weights.matrix(hf.format(expert), outputs, inputs)
            if hf_file:
                hf_file.write(hf.format(expert) + ".weight", stacked[expert])
        for out in outs:
            out.write(kind, stacked)
    for out, path in zip(outs, parts.values()):
        out.close()
        path.rename(path.with_suffix(""))
    if hf_file:
        hf_file.close()
        hf_part.rename(hf_folder / "model.safetensors")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("shape", choices=sorted(SHAPES))
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("--gguf", default="", help="variants to write, such as bf16,f16-whole")
    args = ap.parse_args()
    make(SHAPES[args.shape], args.folder, [v for v in args.gguf.split(",") if v])


if __name__ == "__main__":
    main()
