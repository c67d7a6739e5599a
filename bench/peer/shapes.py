"""The two synthetic models of the peer benchmark: their shapes, and what a step of them must read and multiply."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    name: str
    hidden: int
    layers: int
    dense_layers: int
    dense_width: int
    heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    v: int
    experts: int
    top_k: int
    shared: int
    expert_width: int
    groups: int
    top_groups: int
    vocab: int

    @property
    def moe_layers(self):
        return self.layers - self.dense_layers

    @property
    def expert_params(self):
        return 3 * self.hidden * self.expert_width

    @property
    def attention_params(self):
        """Projections of one layer; kv_b counts once in either form of attention."""
        qk = self.nope + self.rope
        return (self.hidden * (self.q_lora + self.kv_lora + self.rope) + self.q_lora * self.heads * qk
                + self.kv_lora * self.heads * (self.nope + self.v) + self.heads * self.v * self.hidden)

    @property
    def dense_params(self):
        """All that every token passes through, without embedding and head."""
        return (self.layers * self.attention_params + self.dense_layers * 3 * self.hidden * self.dense_width
                + self.moe_layers * (self.shared * self.expert_params + self.experts * self.hidden))

    @property
    def head_params(self):
        return self.vocab * self.hidden

    @property
    def kv_row_bytes(self):
        """Latent KV of one token in one layer, 16-bit."""
        return 2 * (self.kv_lora + self.rope)


SHAPES = {
    "S": Shape("S", hidden=1024, layers=8, dense_layers=1, dense_width=2816, heads=16, q_lora=512, kv_lora=256,
               nope=64, rope=32, v=64, experts=64, top_k=8, shared=1, expert_width=256, groups=8, top_groups=4,
               vocab=16384),
    "M": Shape("M", hidden=2048, layers=6, dense_layers=1, dense_width=10944, heads=16, q_lora=1536, kv_lora=512,
               nope=128, rope=64, v=128, experts=64, top_k=6, shared=2, expert_width=1408, groups=8, top_groups=4,
               vocab=32768),
    # For a quick look at the scripts themselves.
    "T": Shape("T", hidden=256, layers=3, dense_layers=1, dense_width=512, heads=4, q_lora=128, kv_lora=128, nope=32,
               rope=32, v=32, experts=16, top_k=4, shared=1, expert_width=128, groups=4, top_groups=2, vocab=2048),
}

# Bytes of one weight with its scales, as each format's definition has it (Q8_0 and Q4_0 hold the same 8 and 4 bits).
WEIGHT_BYTES = {"bf16": 2.0, "f16": 2.0, "fp8": 1.0 + 4 / (128 * 128), "int8": 1.0 + 4 / 128, "int4": 0.5 + 2 / 32}


@dataclass(frozen=True)
class Machine:
    """Measured figures: bytes/s, and operations/s (a multiply-add is two)."""
    read: float
    fma: float
    bf16: float
    int8: float

    @property
    def half(self):
        return max(self.fma, self.bf16)

    def peak(self, weights):
        return self.int8 if weights in ("int8", "int4") else self.half


def bound_stages(shape, weights, machine, rows, contexts, head_rows, distinct_experts, prefill):
    """Seconds a step cannot beat, per stage: (dense parts with the head, experts, attention).

    rows: tokens computed. contexts: (tokens already stored, new tokens) of each sequence. distinct_experts: experts
    used, summed over the MoE layers."""
    size = WEIGHT_BYTES[weights]
    peak = machine.peak(weights)

    def stage(bytes_read, operations, rate):
        return max(bytes_read / machine.read, operations / rate)

    dense = stage(size * (shape.dense_params + shape.head_params),
                  2.0 * (rows * shape.dense_params + head_rows * shape.head_params), peak)
    experts = stage(size * distinct_experts * shape.expert_params,
                    2.0 * rows * shape.moe_layers * shape.top_k * shape.expert_params, peak)
    per_key = (shape.nope + shape.rope + shape.v) if prefill else (2 * shape.kv_lora + shape.rope)
    pairs = sum(new * stored + new * (new + 1) / 2 for stored, new in contexts)
    stored_rows = sum(stored + new for stored, new in contexts)
    attention = stage(shape.layers * shape.kv_row_bytes * stored_rows,
                      2.0 * shape.layers * shape.heads * pairs * per_key, machine.half)
    return dense, experts, attention
