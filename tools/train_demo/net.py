"""The demo model in PyTorch: DeepSeek-V3's blocks (MLA, gate with correction bias, shared expert, MTP), written for fast training on one core.
Expert weights are stacked; export.py unstacks them into published tensor names."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Shape:
    """Sizes, named as in config.json."""
    vocab_size: int = 2048
    hidden_size: int = 128
    num_hidden_layers: int = 5
    first_k_dense_replace: int = 1
    intermediate_size: int = 384
    moe_intermediate_size: int = 96
    n_routed_experts: int = 16
    n_shared_experts: int = 1
    num_experts_per_tok: int = 4
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 2.5
    num_attention_heads: int = 4
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 32
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    num_nextn_predict_layers: int = 0


def rms_norm(x, weight, eps: float):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def queries_keys(q, k_nope, k_rope, cos, sin, nope: int):
    """Rotates the positional parts and joins them with the others; the softmax scale goes into the queries."""
    heads = q.shape[2]
    q = torch.cat((q[..., :nope], rotate(q[..., nope:], cos, sin)), -1) * q.shape[-1] ** -0.5
    k = torch.cat((k_nope, rotate(k_rope.unsqueeze(2), cos, sin).expand(-1, -1, heads, -1)), -1)
    return q.transpose(1, 2).contiguous(), k.permute(0, 2, 3, 1).contiguous()


def masked_softmax(score, mask):
    return (score.float() + mask).softmax(-1).to(score.dtype)


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


def rope_angles(s, positions):
    """cos and sin [T, rope/2] of each position, in FP32."""
    inv = s.rope_theta ** (-torch.arange(0, s.qk_rope_head_dim, 2, dtype=torch.float32) / s.qk_rope_head_dim)
    angle = positions.float()[..., None] * inv
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Rotates interleaved pairs of the last axis; x [B, T, heads, rope], cos and sin [T, rope/2] or [B, T, rope/2]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, n, qk = s, s.num_attention_heads, s.qk_nope_head_dim + s.qk_rope_head_dim
        self.q_a_proj = nn.Linear(s.hidden_size, s.q_lora_rank, bias=False)
        self.q_a_layernorm = Norm(s.q_lora_rank, 1e-6)
        self.q_b_proj = nn.Linear(s.q_lora_rank, n * qk, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(s.hidden_size, s.kv_lora_rank + s.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = Norm(s.kv_lora_rank, 1e-6)
        self.kv_b_proj = nn.Linear(s.kv_lora_rank, n * (s.qk_nope_head_dim + s.v_head_dim), bias=False)
        self.o_proj = nn.Linear(n * s.v_head_dim, s.hidden_size, bias=False)

    def forward(self, x, rope, mask):
        s, (b, t, _) = self.s, x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(b, t, s.num_attention_heads, -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((s.kv_lora_rank, s.qk_rope_head_dim), -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, t, s.num_attention_heads, -1)
        k_nope, v = kv.split((s.qk_nope_head_dim, s.v_head_dim), -1)
        q, k = queries_keys(q, k_nope, k_rope, *rope, s.qk_nope_head_dim)
        o = torch.matmul(masked_softmax(torch.matmul(q, k), mask), v.transpose(1, 2))
        return self.o_proj(o.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(swiglu(self.gate_up(x)))


class Spread(torch.autograd.Function):
    """x [N, H] -> rows grouped by expert [R, H]; both directions are gathers, so nothing is scattered."""

    @staticmethod
    def forward(ctx, x, source, place, k):
        ctx.save_for_backward(place)
        ctx.k = k
        return torch.cat((x, x.new_zeros(1, x.shape[1])))[source]

    @staticmethod
    def backward(ctx, grad):
        (place,) = ctx.saved_tensors
        return grad[place].view(-1, ctx.k, grad.shape[1]).sum(1), None, None, None


class Experts(torch.autograd.Function):
    """SwiGLU of every expert on its own run of rows; written out because a loop of small products beats autograd's bookkeeping."""

    @staticmethod
    def forward(ctx, rows, w_in, w_out, runs):
        hidden = rows.new_empty(rows.shape[0], w_in.shape[2])
        for e, (a, b) in enumerate(runs):
            torch.mm(rows[a:b], w_in[e], out=hidden[a:b])
        gate, up = hidden.chunk(2, -1)
        gate, up = gate.contiguous(), up.contiguous()
        act, y = F.silu(gate).mul_(up), torch.empty_like(rows)
        for e, (a, b) in enumerate(runs):
            torch.mm(act[a:b], w_out[e], out=y[a:b])
        ctx.save_for_backward(rows, w_in, w_out, gate, up, act)
        ctx.runs = runs
        return y

    @staticmethod
    def backward(ctx, grad):
        rows, w_in, w_out, gate, up, act = ctx.saved_tensors
        d_act, d_in, d_out = torch.empty_like(act), torch.empty_like(w_in), torch.empty_like(w_out)
        for e, (a, b) in enumerate(ctx.runs):
            torch.mm(grad[a:b], w_out[e].t(), out=d_act[a:b])
            torch.mm(act[a:b].t(), grad[a:b], out=d_out[e])
        sig = gate.sigmoid()
        d_up = d_act * gate * sig
        d_gate = d_act.mul_(up).mul_(sig * (1 + gate * (1 - sig)))
        d_hidden, d_rows = torch.cat((d_gate, d_up), -1), torch.empty_like(rows)
        for e, (a, b) in enumerate(ctx.runs):
            torch.mm(d_hidden[a:b], w_in[e].t(), out=d_rows[a:b])
            torch.mm(rows[a:b].t(), d_hidden[a:b], out=d_in[e])
        return d_rows, d_in, d_out, None


class Gather(torch.autograd.Function):
    """Expert rows [R, H] and weights [N, K] -> weighted sum per token [N, H]."""

    @staticmethod
    def forward(ctx, y, weight, source, place):
        n, k = weight.shape
        picked = y[place].view(n, k, -1)
        ctx.save_for_backward(picked, weight, source, place)
        return (picked * weight.unsqueeze(-1)).sum(1)

    @staticmethod
    def backward(ctx, grad):
        picked, weight, source, place = ctx.saved_tensors
        d_weight = (picked * grad.unsqueeze(1)).sum(-1)
        scale = grad.new_zeros(source.shape[0])
        scale[place] = weight.reshape(-1)
        d_y = torch.cat((grad, grad.new_zeros(1, grad.shape[1])))[source] * scale.unsqueeze(-1)
        return d_y, d_weight, None, None


class Moe(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        e, h, f = s.n_routed_experts, s.hidden_size, s.moe_intermediate_size
        self.gate_weight = nn.Parameter(torch.empty(e, h))
        self.register_buffer("bias", torch.zeros(e))
        self.experts_in = nn.Parameter(torch.empty(e, h, 2 * f))
        self.experts_out = nn.Parameter(torch.empty(e, f, h))
        self.shared = Mlp(h, f * s.n_shared_experts)
        self.load = None

    def choose(self, scores):
        """noaux_tc: groups by the sum of their two best biased scores, then the best experts inside the kept groups."""
        s = self.s
        choice = scores + self.bias
        groups = choice.view(-1, s.n_group, s.n_routed_experts // s.n_group)
        kept = groups.topk(2, -1).values.sum(-1).topk(s.topk_group, -1).indices
        allowed = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter_(1, kept, True)
        choice = groups.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(1)
        return choice.topk(s.num_experts_per_tok, -1).indices

    def forward(self, x):
        s, shape = self.s, x.shape
        x = x.reshape(-1, s.hidden_size)
        scores = F.linear(x.float(), self.gate_weight.float()).sigmoid()
        with torch.no_grad():
            chosen = self.choose(scores)
            experts, order = chosen.flatten().sort(stable=True)
            count = torch.bincount(experts, minlength=s.n_routed_experts)
            self.load = count
            room = (count + 63) // 64 * 64  # few shapes: oneDNN compiles one kernel for each
            end = room.cumsum(0)
            slot = (end - room - count.cumsum(0) + count)[experts] + torch.arange(order.shape[0])
            runs = list(zip((end - room).tolist(), end.tolist()))
            source = torch.full((runs[-1][1],), x.shape[0], dtype=torch.long)
            source[slot] = order // s.num_experts_per_tok
            place = torch.empty_like(slot)
            place[order] = slot
        weight = scores.gather(1, chosen)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * s.routed_scaling_factor
        rows = Spread.apply(x, source, place, s.num_experts_per_tok)
        y = Experts.apply(rows, self.experts_in, self.experts_out, runs)
        return (Gather.apply(y, weight.to(y.dtype), source, place) + self.shared(x)).view(shape)


class Layer(nn.Module):
    def __init__(self, s, dense):
        super().__init__()
        self.input_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        self.mlp = Mlp(s.hidden_size, s.intermediate_size) if dense else Moe(s)

    def forward(self, x, rope, mask):
        x = x + self.self_attn(self.input_layernorm(x), rope, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Mtp(nn.Module):
    """Predicts the token after next from the final hidden state and the next token's embedding."""

    def __init__(self, s):
        super().__init__()
        self.enorm, self.hnorm = Norm(s.hidden_size, s.rms_norm_eps), Norm(s.hidden_size, s.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * s.hidden_size, s.hidden_size, bias=False)
        self.layer = Layer(s, dense=False)
        self.norm = Norm(s.hidden_size, s.rms_norm_eps)

    def forward(self, hidden, next_embedding, rope, mask):
        x = self.eh_proj(torch.cat((self.enorm(next_embedding), self.hnorm(hidden)), -1))
        return self.norm(self.layer(x, rope, mask))


class Net(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.embed = nn.Parameter(torch.empty(s.vocab_size, s.hidden_size))
        self.layers = nn.ModuleList(Layer(s, i < s.first_k_dense_replace) for i in range(s.num_hidden_layers))
        self.norm = Norm(s.hidden_size, s.rms_norm_eps)
        self.head = nn.Parameter(torch.empty(s.vocab_size, s.hidden_size))
        self.mtp = Mtp(s) if s.num_nextn_predict_layers else None

    def reset(self, seed):
        """Random weights, with a head start in the first two layers' attention (see head_start)."""
        generator = torch.Generator().manual_seed(seed)
        depth = (2 * self.s.num_hidden_layers) ** -0.5
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.dim() == 1:
                    continue
                std = 1.0 if name == "embed" else 0.7 * p.shape[1] ** -0.5  # a small embedding would drown in the residual stream
                if name.endswith(("o_proj.weight", "down_proj.weight", "experts_out")):
                    std *= depth
                p.normal_(0, std, generator=generator)
            self.head_start(generator)

    def head_start(self, generator):
        """Copying digits rests on two circuits that take long to form from noise, so they are written in and then trained like the rest:
        layer 0's heads look 1, 2, 3 and 4 tokens back, and layer 1's look for the place where the last one or two tokens stood before.
        Residual layout at the start: 0 constant, 1-63 token, 64-95 the token before, 96-127 the one before that."""
        s, first, second = self.s, self.layers[0].self_attn, self.layers[1].self_attn
        nope, rope, v, latent = s.qk_nope_head_dim, s.qk_rope_head_dim, s.v_head_dim, s.kv_lora_rank
        heads = lambda w: w.view(s.num_attention_heads, -1, w.shape[1])
        code = torch.linalg.qr(torch.randn(63, 63, generator=generator)).Q[:32]  # what "a token's identity" is written as
        self.embed[:, 1:64] *= 1.4
        self.embed[:, 0], self.embed[:, 64:] = 2.0, 0.0

        first.q_a_proj.weight.mul_(0.02)[0, 0] = 1.0
        first.kv_a_proj_with_mqa.weight[latent:] *= 0.1
        first.kv_a_proj_with_mqa.weight[:32].zero_()[:, 1:64] = code
        q, kv = heads(first.q_b_proj.weight), heads(first.kv_b_proj.weight)
        q[:, :, 0] = 0.0
        inv = s.rope_theta ** (-torch.arange(0, rope, 2) / rope)
        for j in range(6):
            first.kv_a_proj_with_mqa.weight[latent + 2 * j:latent + 2 * j + 2].zero_()[0, 0] = 2.5
            for h in range(s.num_attention_heads):
                q[h, nope + 2 * j, 0], q[h, nope + 2 * j + 1, 0] = 1.43 * torch.cos(inv[j] * (h + 1)), -1.43 * torch.sin(inv[j] * (h + 1))
        out = first.o_proj.weight.view(s.hidden_size, s.num_attention_heads, v)
        for h in range(2):
            kv[h, nope:] = torch.eye(v, latent)
            out[:, h] = 0.0
            out[64 + 32 * h:96 + 32 * h, h] = 1.2 * torch.eye(32)

        q_a, kv_a = second.q_a_proj.weight, second.kv_a_proj_with_mqa.weight
        q_a.mul_(0.3)[:64].zero_()[:32, 1:64] = code
        q_a[32:64, 64:96] = torch.eye(32)
        kv_a[:latent].zero_()
        kv_a[:24, 64:88], kv_a[24:40, 96:112], kv_a[40:64, 1:64] = torch.eye(24), torch.eye(16), code[:24]
        kv_a[latent:] *= 0.3
        q, kv = heads(second.q_b_proj.weight), heads(second.kv_b_proj.weight)
        for h, (one, two, gain) in enumerate(((24, 0, 1.8), (16, 16, 1.6), (16, 16, 1.1))):
            q[h].mul_(0.2)
            kv[h, :nope].mul_(0.2)
            q[h, :one, :one] += gain * torch.eye(one)
            kv[h, :one, :one] += gain * torch.eye(one)
            if two:
                q[h, one:one + two, 32:32 + two] += gain * torch.eye(two)
                kv[h, one:one + two, 24:24 + two] += gain * torch.eye(two)
            kv[h, nope:].zero_()[:24, 40:64] = torch.eye(24)
        second.o_proj.weight.mul_(1.5)

    def moes(self):
        return [m for m in self.modules() if isinstance(m, Moe)]

    def forward(self, ids, rope, mask):
        """ids [B, T] -> hidden states after the final norm [B, T, H]."""
        x = self.embed[ids]
        for layer in self.layers:
            x = layer(x, rope, mask)
        return self.norm(x)


def row_mask(documents, dtype):
    """Additive causal mask [B, 1, T, T] that keeps packed documents apart; documents [B, T] numbers them."""
    t = documents.shape[1]
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    allowed = same & torch.ones(t, t, dtype=torch.bool).tril()
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, float("-inf")).unsqueeze(1)
