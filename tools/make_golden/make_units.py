"""Makes tests/fixtures/unit: golden values of FP8 conversion, YaRN frequencies and the gates, as plain text.
Usage: python make_units.py OUT_DIR. Needs torch and transformers; formats are in tests/fixtures/README.md."""

import math
import pathlib
import struct
import sys

import numpy as np
import torch
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

import cases


def bits(x):
    return struct.pack(">f", x).hex()


def fp8_decode():
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return [f"{i:02x} {bits(v) if not math.isnan(v) else 'nan'}" for i, v in enumerate(codes.tolist())]


def fp8_inputs(rng):
    """Every representable value, every tie between neighbours and the floats beside the ties, range ends, and random values."""
    levels = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    ties = (levels[:-1] + levels[1:]) / 2
    some = ties[rng.permutation(len(ties))[:60]]
    beside = np.concatenate([np.nextafter(some, np.float32(0)), np.nextafter(some, np.float32(1e9))])
    edge = np.array([0.0, -0.0, 2.0**-9, 2.0**-10, np.nextafter(np.float32(2.0**-10), np.float32(1)), 2.0**-6, 1e-30, 1e-45, 447, 448,
                     449, 463.9, 464, 464.1, 480, 1e4, 3.4e38, np.inf], dtype=np.float32)
    spread = np.exp2(rng.uniform(-12, 10, 120)).astype(np.float32)
    values = np.concatenate([levels, ties, beside, edge, spread]).astype(np.float32)
    sign = np.where(rng.random(len(values)) < 0.4, -1, 1).astype(np.float32)
    return np.concatenate([values * sign, np.array([np.nan], dtype=np.float32)])


def fp8_encode():
    """Round to nearest even, saturating: everything past 448, infinity too, becomes 448; NaN stays NaN (7f)."""
    values = torch.from_numpy(fp8_inputs(np.random.default_rng(3)))
    codes = values.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    return [f"{bits(v)} {'7f' if math.isnan(v) else f'{c:02x}'}" for v, c in zip(values.tolist(), codes.tolist())]


def yarn():
    """Inverse frequencies, the factor on cos and sin, and the softmax scale, through transformers' own YaRN."""
    v3 = cases.YARN
    settings = {"v3": (64, 192, 10000.0, v3), "v2-lite": (64, 192, 10000.0, v3 | {"mscale": 0.707, "mscale_all_dim": 0.707}),
                "kimi-k2": (64, 192, 50000.0, v3 | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}),
                "moonlight": (64, 192, 50000.0, None),
                "uneven": (8, 28, 10000.0, cases.CASES["odd"][0]["rope_parameters"])}
    lines = []
    for name, (rope, qk, theta, scaling) in settings.items():
        parameters = {"rope_type": "default", "rope_theta": theta}
        if scaling:
            parameters = {k: v for k, v in scaling.items() if k != "type"} | {"rope_type": "yarn", "rope_theta": theta}
        config = DeepseekV3Config(qk_rope_head_dim=rope, max_position_embeddings=163840, rope_parameters=parameters)
        if scaling:
            inv, factor = ROPE_INIT_FUNCTIONS["yarn"](config)
            m = 0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1
        else:
            inv, factor, m = theta ** (-torch.arange(0, rope, 2) / rope), 1.0, 1.0
        lines += [f"{name} cos_sin_factor 0 {factor:.9g}", f"{name} softmax_scale 0 {qk**-0.5 * m * m:.9g}"]
        lines += [f"{name} inv_freq {i} {v:.9g}" for i, v in enumerate(inv.tolist())]
    return lines


def gate_lines(name, config, gate, logits, bias):
    """The gate runs on an identity matrix, so that its input is its logits."""
    with torch.no_grad():
        gate.weight.copy_(torch.eye(logits.shape[1]))
        if bias is not None:
            gate.e_score_correction_bias.copy_(bias)
        _, weight, index = gate(logits)
    order = index.sort(-1)
    head = (f"case {name} experts {logits.shape[1]} groups {config.n_group or 1} topk_group {config.topk_group or 1} "
            f"top {config.num_experts_per_tok} scale {config.routed_scaling_factor}")
    lines = [head] + ([] if bias is None else ["bias " + " ".join(f"{v:.9g}" for v in bias.tolist())])
    for row in range(logits.shape[0]):
        lines += ["logits " + " ".join(f"{v:.9g}" for v in logits[row].tolist()),
                  "chosen " + " ".join(map(str, order.values[row].tolist())),
                  "weights " + " ".join(f"{v:.9g}" for v in weight[row][order.indices[row]].tolist())]
    return lines


def gates():
    lines = []
    i = torch.arange(16, dtype=torch.float64)
    wave = (2 * torch.sin(1.7 * i + 0.3)).float()[None], (0.2 * torch.cos(0.9 * i)).float()
    draw = torch.Generator().manual_seed(4)
    rand = lambda *shape: torch.randn(*shape, generator=draw)
    v3 = [("wave", 16, 4, 2, 4, 2.5, *wave), ("v3", 256, 8, 4, 8, 2.5, 2 * rand(6, 256), 0.1 * rand(256)),
          ("moonlight", 64, 1, 1, 6, 2.446, 2 * rand(6, 64), 0.1 * rand(64)),
          ("negative", 16, 4, 2, 4, 2.5, 2 * rand(6, 16), -1.5 + 0.3 * rand(16)),  # biased scores below zero
          ("kimi-k2", 384, 1, 1, 8, 2.827, 2 * rand(4, 384), 0.1 * rand(384))]
    for name, experts, groups, kept, top, scale, logits, bias in v3:
        config = DeepseekV3Config(hidden_size=experts, n_routed_experts=experts, n_group=groups, topk_group=kept,
                                  num_experts_per_tok=top, routed_scaling_factor=scale, norm_topk_prob=True)
        lines += gate_lines("noaux_tc " + name, config, DeepseekV3TopkRouter(config), logits, bias)
    v2 = [("greedy v2-lite", 64, None, None, 6, 1.0, "greedy"), ("group_limited_greedy v2", 160, 8, 3, 6, 16.0, "group_limited_greedy")]
    for name, experts, groups, kept, top, scale, method in v2:
        config = DeepseekV2Config(hidden_size=experts, n_routed_experts=experts, n_group=groups, topk_group=kept,
                                  num_experts_per_tok=top, routed_scaling_factor=scale, topk_method=method, norm_topk_prob=False)
        lines += gate_lines(name, config, DeepseekV2TopkRouter(config), 2 * rand(6, experts), None)
    return lines


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in {"fp8_decode": fp8_decode(), "fp8_encode": fp8_encode(), "yarn": yarn(), "gates": gates()}.items():
        (out / f"{name}.txt").write_text("\n".join(lines) + "\n")
        print(name, len(lines), "lines")


if __name__ == "__main__":
    main()
