"""Makes tests/fixtures: tiny checkpoints (cases.py) and what transformers computes from them in FP32.
Usage: python make_fixtures.py OUT_DIR [CASE...]. Needs torch and transformers; see tests/fixtures/README.md."""

import json
import pathlib
import sys
import tempfile

import safetensors.torch as st
import torch
import torch.nn.functional as F
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM

import cases

BLOCK = 128
FP8_MAX = 448.0
STEPS = 64
NO_GROUPS = 1e30
TRIES = 80  # token draws tried for sequences whose every gate decision is clearer than CLEAR
CLEAR = {"F32": 3e-4, "F16": 3e-3, "BF16": 5e-3, "FP8": 5e-3}
# What a step's margins exceed so that coarse arithmetic must choose the same token: (logit margin / RMS of the logits, gate margin).
CLEAR_STEP = {"F16": (0.15, 0.02), "BF16": (0.15, 0.02), "FP8": (0.4, 0.1)}
CLEAR_STEP_LENGTH = 12


# --- FP8, by hand ------------------------------------------------------------------------------------------------------

def scale_of(amax, ue8m0):
    """The multiplier of FP8 codes for a largest magnitude; ue8m0 rounds it up to a power of two."""
    scale = amax / FP8_MAX
    return torch.exp2(torch.ceil(torch.log2(scale))) if ue8m0 else scale


def quantise_weight(w, ue8m0):
    """FP8 codes and the multiplier of each 128 x 128 block; edge blocks are cut, not shifted."""
    rows, cols = w.shape
    scale = torch.zeros(-(-rows // BLOCK), -(-cols // BLOCK))
    codes = torch.zeros(rows, cols, dtype=torch.float8_e4m3fn)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scale[i, j] = scale_of(w[at].abs().max(), ue8m0)
            codes[at] = (w[at] / scale[i, j]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return codes, scale


def dequantise_weight(codes, scale):
    rows, cols = codes.shape
    full = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :cols]
    return codes.float() * full


def fake_quantise(x, ue8m0):
    """Activations per token and 128 channels: scale max(amax, 1e-4) / 448, rounded to FP8 and back."""
    out = torch.empty_like(x)
    for a in range(0, x.shape[-1], BLOCK):
        part = x[..., a:a + BLOCK]
        scale = scale_of(part.abs().amax(-1, keepdim=True).clamp_min(1e-4), ue8m0)
        out[..., a:a + BLOCK] = (part / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float() * scale
    return out


class QuantLinear(torch.nn.Module):
    def __init__(self, weight, ue8m0):
        super().__init__()
        self.weight, self.ue8m0 = weight, ue8m0

    def forward(self, x):
        return F.linear(fake_quantise(x, self.ue8m0), self.weight)


def quantised_experts(experts, ue8m0):
    """The experts' forward with FP8 activations; one pass per expert, weights applied to the result."""
    def forward(x, index, weight):
        out = torch.zeros_like(x)
        for e in range(experts.num_experts):
            token, k = torch.where(index == e)
            if len(token):
                gate, up = F.linear(fake_quantise(x[token], ue8m0), experts.gate_up_proj[e]).chunk(2, -1)
                y = F.linear(fake_quantise(F.silu(gate) * up, ue8m0), experts.down_proj[e])
                out.index_add_(0, token, y * weight[token, k, None])
        return out
    return forward


def quantise_model(model, quantise_kv_b, ue8m0):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear) and name != "lm_head" and (name != "kv_b_proj" or quantise_kv_b):
                setattr(module, name, QuantLinear(child.weight, ue8m0))
        if type(module).__name__.endswith("Experts"):
            module.forward = quantised_experts(module, ue8m0)


# --- checkpoints -------------------------------------------------------------------------------------------------------

def is_quantised(name, tensor):
    return tensor.dim() == 2 and not name.endswith(("mlp.gate.weight", "embed_tokens.weight", "lm_head.weight"))


def has_ue8m0(config):
    return config.get("quantization_config", {}).get("scale_fmt") == "ue8m0"


def stored(raw, kind, ue8m0):
    """The tensors as they go into the file, and the FP32 values they stand for."""
    files, values = {}, {}
    for name, array in raw.items():
        w = torch.from_numpy(array)
        if kind == "FP8" and is_quantised(name, w):
            codes, scale = quantise_weight(w, ue8m0)
            files |= {name: codes, name + "_scale_inv": scale}
            values[name] = dequantise_weight(codes, scale)
        else:
            keep = kind == "F32" or name.endswith("e_score_correction_bias")
            files[name] = w if keep else w.half() if kind == "F16" else w.bfloat16()
            values[name] = files[name].float()
    return files, values


def write_checkpoint(folder, config, tensors, shards):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if shards == 1:
        st.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    where, total = {}, sum(t.numel() * t.element_size() for t in tensors.values())
    for i in range(shards):  # interleaved, so that scales and weights of one layer lie in different shards
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[i::shards]
        st.save_file({n: tensors[n] for n in mine}, folder / file, metadata={"format": "pt"})
        where |= {n: file for n in mine}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def load_oracle(config, values):
    """The transformers model in FP32, loaded from an ordinary folder so that its own reader is part of the oracle."""
    plain = {k: v for k, v in config.items() if k not in ("quantization_config", "torch_dtype", "dtype")}
    v2 = config["architectures"][0].startswith("DeepseekV2")
    plain |= {"model_type": "deepseek_v2" if v2 else "deepseek_v3", "torch_dtype": "float32"}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(pathlib.Path(folder), plain, values, 1)
        kind = (DeepseekV2ForCausalLM, DeepseekV2Config) if v2 else (DeepseekV3ForCausalLM, DeepseekV3Config)
        model, info = kind[0].from_pretrained(folder, config=kind[1].from_pretrained(folder), dtype=torch.float32,
                                              attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


# --- what is recorded --------------------------------------------------------------------------------------------------

def gate_record(config, gate, hidden):
    """Chosen experts (ascending), their weights, and how near the choice was: last chosen minus first not chosen."""
    scores = F.linear(hidden.float(), gate.weight.float())
    choice = scores.sigmoid() + gate.e_score_correction_bias if config["topk_method"] == "noaux_tc" else scores.softmax(-1)
    groups, kept, top = config["n_group"], config["topk_group"], config["num_experts_per_tok"]
    group_margin = torch.full(choice.shape[:1], NO_GROUPS)
    if groups > 1 and config["topk_method"] != "greedy":
        split = choice.view(-1, groups, choice.shape[1] // groups)
        rank = split.topk(2, -1).values.sum(-1) if config["topk_method"] == "noaux_tc" else split.amax(-1)
        best = rank.sort(-1, descending=True)
        group_margin = best.values[:, kept - 1] - best.values[:, kept]
        allowed = torch.zeros_like(rank, dtype=torch.bool).scatter_(1, best.indices[:, :kept], True)
        choice = split.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(1)
    order = choice.sort(-1, descending=True)
    margin = (order.values[:, top - 1] - order.values[:, top]).clamp_max(NO_GROUPS)
    _, weight, index = gate(hidden)
    ascending = index.sort(-1)
    assert torch.equal(ascending.values, order.indices[:, :top].sort(-1).values)
    return {"experts": ascending.values.int(), "weights": weight.gather(1, ascending.indices), "gate_margin": margin,
            "group_margin": group_margin}


class Recorder:
    """Runs the model and keeps each block's output and each gate's decision."""

    def __init__(self, model, config):
        self.model, self.config, self.kept = model, config, {}
        model.model.embed_tokens.register_forward_hook(self.keep("embed"))
        model.model.norm.register_forward_hook(self.keep("norm"))
        for i, layer in enumerate(model.model.layers):
            layer.register_forward_hook(self.keep(f"layer{i}"))
            if hasattr(layer.mlp, "gate"):
                layer.mlp.register_forward_pre_hook(self.gate(i, layer.mlp.gate))

    def keep(self, name):
        def hook(module, inputs, output):
            self.kept[name] = (output[0] if isinstance(output, tuple) else output).detach().squeeze(0)
        return hook

    def gate(self, i, gate):
        def hook(module, inputs):
            record = gate_record(self.config, gate, inputs[0].reshape(-1, inputs[0].shape[-1]))
            self.kept |= {f"layer{i}.{k}": v for k, v in record.items()}
        return hook

    @torch.no_grad()
    def run(self, ids):
        self.kept = {}
        logits = self.model(input_ids=ids[None].long(), use_cache=False).logits[0]
        return self.kept | {"logits": logits}


def rows_of(length):
    """Positions whose hidden states and logits are kept: the first ones, block edges and their neighbours, and the last."""
    return torch.tensor([p for p in (0, 1, 2, 3, 7, 15, 16, 31, 35, 63, 64, 65, 100, 127, 128) if p < length - 1] + [length - 1])


def record(model, config, seed, kind):
    """Draws token sequences until no gate decision is near a tie (or takes the clearest draw), then records them."""
    recorder, clear = Recorder(model, config), CLEAR[kind]
    margin, draw_seed = -1.0, 0
    for attempt in range(seed * 1000, seed * 1000 + TRIES):
        found = nearest(recorder, config, attempt, clear)
        if found > margin:
            margin, draw_seed = found, attempt
        if margin >= clear:
            break
    out = record_draw(recorder, config, draw_seed)
    return out | clear_steps(recorder, config, seed, *CLEAR_STEP[kind]) if kind in CLEAR_STEP else out


def sequences(config, draw_seed):
    draw = torch.Generator().manual_seed(draw_seed)
    for length in cases.LENGTHS:
        ids = torch.randint(2, config["vocab_size"], (length,), generator=draw)
        ids[0] = config["bos_token_id"]
        yield ids


def nearest(recorder, config, draw_seed, clear):
    """Least gate margin over the sequences, cut off at `clear` so that the first clear draw wins."""
    least = clear
    for ids in sequences(config, draw_seed):
        for name, value in recorder.run(ids).items():
            if name.endswith(("gate_margin", "group_margin")):
                least = min(least, float(value.min()))
    return least


def record_draw(recorder, config, draw_seed):
    out = {}
    for n, ids in enumerate(sequences(config, draw_seed)):
        rows = rows_of(len(ids))
        out |= {f"seq{n}.ids": ids.int(), f"seq{n}.rows": rows.int()}
        for name, value in recorder.run(ids).items():
            out[f"seq{n}.{name}"] = value if "layer" in name and "." in name else value[rows]
    return out | steps(recorder, out["seq1.ids"])


def steps(recorder, prompt):
    """Greedy continuation of seq1, with the top-2 distance of each step and the nearest gate decision of its whole prefix."""
    ids, margins = prompt.clone(), []
    for _ in range(STEPS):
        best = recorder.run(ids)["logits"][-1].topk(2)
        ids = torch.cat((ids, best.indices[:1].int()))
        margins.append(best.values[0] - best.values[1])
    near = least_gate_margin(recorder.run(ids[:-1]))
    first = len(prompt) - 1
    return {"steps.ids": ids[len(prompt):], "steps.margin": torch.stack(margins), "steps.gate_margin": near[first:]}


def least_gate_margin(run):
    """Per position: the nearest gate decision of its whole prefix."""
    return torch.stack([v for k, v in run.items() if k.endswith(("gate_margin", "group_margin"))]).amin(0).cummin(0).values


def clear_steps(recorder, config, seed, logit_clear, gate_clear):
    """Steps after short prefixes whose logit margin and every gate margin of the prefix are clear for coarse arithmetic: the longest
    such prefix of each draw, until there are STEPS of them."""
    draw, found = torch.Generator().manual_seed(seed), []
    while len(found) < STEPS:
        ids = torch.randint(2, config["vocab_size"], (CLEAR_STEP_LENGTH,), generator=draw)
        run = recorder.run(ids)
        best = run["logits"].topk(2, -1)
        share = (best.values[:, 0] - best.values[:, 1]) / run["logits"].pow(2).mean(-1).sqrt()
        gates = least_gate_margin(run)
        clear = torch.where((share > logit_clear) & (gates > gate_clear))[0]
        if len(clear):
            last = int(clear[-1])
            padded = torch.cat((ids[:last + 1], torch.full((CLEAR_STEP_LENGTH - last - 1,), -1)))
            found.append((padded, best.indices[last, 0], share[last], gates[last]))
    ids, chosen, share, gates = (torch.stack(column) for column in zip(*found))
    return {"clear.ids": ids.int(), "clear.next": chosen.int(), "clear.margin": share, "clear.gate_margin": gates}


def make(name, out):
    config, kind, shards, seed = cases.CASES[name]
    tensors, values = stored(cases.weights(config, seed), kind, has_ue8m0(config))
    folder = out / name
    write_checkpoint(folder, config, tensors, shards)
    jobs = {"expected": False if kind == "FP8" else None}
    if name == "v3-fp8":
        jobs["expected_kv_b_fp8"] = True
    for file, quantise_kv_b in jobs.items():
        model = load_oracle(config, values)
        if quantise_kv_b is not None:
            quantise_model(model, quantise_kv_b, has_ue8m0(config))
        found = record(model, config, seed, kind)
        st.save_file({k: v.contiguous() for k, v in found.items()}, folder / f"{file}.safetensors")
        spread = found["seq2.logits"].std()
        print(f"{name:10} {file:18} logits std {spread:.2f} hidden rms {found['seq2.norm'].pow(2).mean().sqrt():.2f} "
              f"distinct steps {len(set(found['steps.ids'].tolist()))} least margins: logit {found['steps.margin'].min():.4f} "
              f"gate {found['steps.gate_margin'].min():.6f}"
              + (f" clear prefixes of {(found['clear.ids'] >= 0).sum(1).float().mean():.1f} tokens" if "clear.ids" in found else ""))


def main():
    torch.set_num_threads(1)
    out = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or cases.CASES:
        make(name, out)


if __name__ == "__main__":
    main()
