"""A checkpoint of DeepSeek-V2-Lite's size and shapes, 31 GB of BF16 in several shards, served as int4 on a machine it would
not fit as it is. The shards are sparse files of zeros: they take no disk, and loading does all its work on them."""
import json
import os
import re
import struct
import subprocess

import pytest
from checkpoints import add_tokenizer, checkpoint_shapes
from conftest import BINARY, START_TIMEOUT_S, Server

HIDDEN, LAYERS, HEADS, LATENT, NOPE, ROPE, V = 2048, 27, 16, 512, 128, 64, 128
EXPERTS, WIDTH, DENSE, VOCAB = 64, 1408, 10944, 102400
SHARD_BYTES = 8 << 30
CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "torch_dtype": "bfloat16", "vocab_size": VOCAB,
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "q_lora_rank": None, "kv_lora_rank": LATENT, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": V,
    "n_routed_experts": EXPERTS, "num_experts_per_tok": 6, "n_shared_experts": 2, "moe_intermediate_size": WIDTH,
    "intermediate_size": DENSE, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
    "scoring_func": "softmax", "norm_topk_prob": False, "routed_scaling_factor": 1.0, "moe_layer_freq": 1,
    "max_position_embeddings": 163840, "rope_theta": 10000, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
                     "mscale": 0.707, "mscale_all_dim": 0.707}}


def size_of(shape):
    count = 2
    for n in shape:
        count *= n
    return count


def write_shards(folder, config=CONFIG):
    shards, size = [{}], 0
    for name, shape in checkpoint_shapes(config).items():
        if size + size_of(shape) > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, size + size_of(shape)]}
        size += size_of(shape)
    weight_map, total = {}, 0
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        header = json.dumps(shard).encode()
        data_bytes = max(t["data_offsets"][1] for t in shard.values())
        with (folder / name).open("wb") as out:
            out.write(struct.pack("<Q", len(header)) + header)
            out.truncate(8 + len(header) + data_bytes)
        weight_map |= dict.fromkeys(shard, name)
        total += data_bytes
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return total


def write_model(folder, config=CONFIG):
    """Returns the bytes of its tensors."""
    (folder / "config.json").write_text(json.dumps(config))
    add_tokenizer(folder)
    return write_shards(folder, config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("v2-lite")
    assert 31e9 < write_model(folder) < 32e9
    return folder


def peak_rss_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) * 1024


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return int(re.search(r"Anonymous:\s+(\d+) kB", rollup.read())[1]) * 1024


def test_a_model_larger_than_memory_is_refused_with_the_arithmetic(tmp_path):
    """As it is and, for it is that large, as int4 too: in one line, before anything is read."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    wider = 5 * memory_bytes // int(28e9) + 1  # 28 of V2-Lite's 31 GB are its routed experts
    size = write_model(tmp_path, {**CONFIG, "moe_intermediate_size": wider * WIDTH})
    assert size > 5 * memory_bytes
    for weights, bits in (("native", 16), ("int4", 4.5)):
        command = [str(BINARY), "serve", "--port", "0", "--model", str(tmp_path), "--weights", weights]
        result = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S)
        assert result.returncode == 2 and result.stdout == "" and len(result.stderr.splitlines()) == 1, result
        match = re.search(r"does not fit in memory: weights ([\d.]+) GiB \+ KV 1\.00 GiB \+ activations [\d.]+ [MG]iB \+ tokenizing [\d.]+ [MG]iB \+ "
                          r"reserve [\d.]+ [MG]iB = ([\d.]+) GiB of ([\d.]+) GiB available", result.stderr)
        assert match and str(tmp_path) in result.stderr, result.stderr
        weights_gib, total_gib, available_gib = map(float, match.groups())
        assert weights_gib == pytest.approx(size * bits / 16 / 2**30, rel=0.1)
        assert total_gib > weights_gib + 1 and total_gib > available_gib


@pytest.mark.slow
def test_v2_lite_is_served_as_int4(folder):
    server = Server("--model", str(folder), "--weights", "int4", "--kv-memory", "512M")
    try:
        answer = server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True})
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 4
        # 4.5 bits a weight and what stays 16-bit, 0.5 GiB of KV, buffers.
        assert 8e9 < anonymous_bytes(server.process.pid) < 11.5e9
        assert peak_rss_bytes(server.process.pid) < 13e9, "source pages are given back while loading"
    finally:
        server.stop()
