"""Trains the demo model on one core: warm-up, constant rate, then a linear cool-down to zero; AdamW on one flat FP32 master copy.
Usage: python train.py RUN_DIR --tokenizer DIR --steps N --cooldown N [--resume]. See README.md."""

import argparse
import json
import os
import pathlib
import random
import time

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")

import tokenizers
import torch
import torch.nn.functional as F

import lessons
import net

ROW, ROWS = 768, 2  # tokens per packed row, rows per step
IGNORE = -100
BIAS_STEP = 2e-3
JUMP_MAX = 6000  # positions


class Feed:
    """Packs lessons into rows of ROW tokens; labels only on the text the model must write."""

    def __init__(self, tokenizer, seed, want_held_out=False, jump=0.0):
        self.tok, self.rng, self.split = tokenizer, random.Random(seed), want_held_out
        self.pool, self.jumps, self.jump = [], random.Random(seed + 1), jump
        self.user = tokenizer.token_to_id(lessons.USER)

    def state(self):
        return self.rng.getstate(), self.jumps.getstate(), self.pool

    def restore(self, state):
        self.rng.setstate(state[0])
        self.jumps.setstate(state[1])
        self.pool = state[2]

    def encode(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def one(self, kind=None):
        while True:
            made = lessons.lesson(self.rng, self.split, kind)
            prompt, target = self.encode(made.prompt), self.encode(made.target)
            if len(prompt) + len(target) <= ROW:
                return made.kind, prompt, target

    def batch(self):
        ids = torch.full((ROWS, ROW), 2)
        positions = torch.arange(ROW).repeat(ROWS, 1)
        labels, documents = torch.full((ROWS, ROW), IGNORE), torch.full((ROWS, ROW), -1)
        for r in range(ROWS):
            at, number = 0, 0
            while True:
                while len(self.pool) < 12:
                    self.pool.append(self.one())
                fit = next((i for i, (_, p, t) in enumerate(self.pool) if len(p) + len(t) <= ROW - at), None)
                if fit is None:
                    break
                _, prompt, target = self.pool.pop(fit)
                both = torch.tensor(prompt + target)
                ids[r, at:at + len(both)] = both
                documents[r, at:at + len(both)] = number
                first = at + len(prompt)
                labels[r, first - 1:first - 1 + len(target)] = torch.tensor(target)
                if self.jumps.random() < self.jump:
                    turn = at + len(prompt) - 1 - prompt[::-1].index(self.user)
                    positions[r, turn:] += int(JUMP_MAX ** self.jumps.random())
                at, number = at + len(both), number + 1
        return ids, labels, documents, positions


class Flat:
    """All parameters as views of one BF16 vector, with an FP32 master, an average of it, and AdamW on the master."""

    def __init__(self, params, decay=0.05, betas=(0.9, 0.98)):
        params = sorted(params, key=lambda p: p.dim() < 2)  # matrices first: only they decay
        self.params, total = params, sum(p.numel() for p in params)
        self.cut = sum(p.numel() for p in params if p.dim() >= 2)
        self.master = torch.cat([p.detach().float().flatten() for p in params])
        self.average = self.master.clone()
        self.work, self.grad = self.master.bfloat16(), torch.zeros(total, dtype=torch.bfloat16)
        self.parts = [self.master[: self.cut].requires_grad_(), self.master[self.cut:].requires_grad_()]
        self.optimizer = torch.optim.AdamW([{"params": [self.parts[0]], "weight_decay": decay},
                                            {"params": [self.parts[1]], "weight_decay": 0.0}], lr=1e-3, betas=betas, fused=True)
        self.point(self.work)
        at = 0
        for p in params:
            p.grad = self.grad[at:at + p.numel()].view(p.shape)
            at += p.numel()

    def point(self, vector):
        at = 0
        for p in self.params:
            p.data = vector[at:at + p.numel()].view(p.shape)
            at += p.numel()

    def step(self, rate, clip=1.0):
        grad = self.grad.float()
        norm = grad.norm()
        grad *= min(1.0, clip / (float(norm) + 1e-6))
        self.parts[0].grad, self.parts[1].grad = grad[: self.cut], grad[self.cut:]
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            self.work.copy_(self.master)
        self.grad.zero_()
        return float(norm)

    def blend(self, keep):
        with torch.no_grad():
            self.average.lerp_(self.master, 1 - keep)


def picked(labels):
    """Positions with a label, padded to a multiple of 128 so that the head sees few shapes."""
    flat = labels.flatten()
    at = (flat != IGNORE).nonzero().squeeze(1)
    extra = -at.shape[0] % 128
    return torch.cat((at, at.new_zeros(extra))), torch.cat((flat[at], flat.new_full((extra,), IGNORE)))


def loss_of(hidden, head, labels):
    """Mean cross-entropy over the labelled positions, and the share of them that the greedy choice hits."""
    at, want = picked(labels)
    logits = F.linear(hidden.flatten(0, 1)[at], head).float()
    hits = (logits.argmax(-1) == want).sum() / max(1, int((want != IGNORE).sum()))
    return F.cross_entropy(logits, want, ignore_index=IGNORE), float(hits)


def forward_loss(model, batch):
    ids, labels, documents, positions = batch
    hidden = model(ids, net.rope_angles(model.s, positions), net.row_mask(documents, torch.bfloat16))
    return loss_of(hidden, model.head, labels)


def balance(model):
    """Auxiliary-loss-free balancing: the bias of a busy expert falls, that of an idle one rises."""
    worst = 0.0
    for moe in model.moes():
        if moe.load is None or not moe.training:
            continue
        load = moe.load.float()
        moe.bias += BIAS_STEP * torch.sign(load.mean() - load)
        moe.bias -= moe.bias.mean()
        worst = max(worst, float(load.max() / load.mean()))
    return worst


@torch.no_grad()
def exact(model, feed, kind, count):
    """Share of held-out lessons whose every token is the greedy choice; equals free-running greedy decoding, in one pass."""
    good = done = 0
    while done < count:
        items = [feed.one(kind) for _ in range(min(16, count - done))]
        width = -(-max(len(p) + len(t) for _, p, t in items) // 32) * 32
        ids = torch.full((len(items), width), 2)
        for i, (_, p, t) in enumerate(items):
            ids[i, :len(p) + len(t)] = torch.tensor(p + t)
        mask = net.row_mask(torch.zeros_like(ids), torch.bfloat16)
        hidden = model(ids, net.rope_angles(model.s, torch.arange(width)), mask)
        for i, (_, p, t) in enumerate(items):
            guess = F.linear(hidden[i, len(p) - 1:len(p) - 1 + len(t)], model.head).argmax(-1)
            good += guess.tolist() == t
        done += len(items)
    return good / count


def rate_at(step, args):
    warm = min(1.0, (step + 1) / 100)
    left = (args.steps - step) / args.cooldown
    return args.rate * warm * max(0.0, min(1.0, left))


def save(path, model, flat, step, feed, args):
    state = {"step": step, "master": flat.master.detach(), "average": flat.average, "optimizer": flat.optimizer.state_dict(),
             "bias": [m.bias for m in model.moes()], "shape": vars(model.s), "feed": feed.state()}
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path)


def evaluate(model, flat, args, count, use_average):
    if use_average:
        flat.point(flat.average.bfloat16())
    held = Feed(args.tok, 999, want_held_out=True)
    result = {kind: round(exact(model, held, kind, count), 4) for kind in lessons.MIX}
    flat.point(flat.work)
    return result


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("run", type=pathlib.Path)
    p.add_argument("--tokenizer", type=pathlib.Path, required=True)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--cooldown", type=int, default=2000)
    p.add_argument("--rate", type=float, default=2.5e-3)
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--jump", type=float, default=0.0,
                   help="share of lessons whose last turn is moved away from what came before, as in a long conversation")
    p.add_argument("--save-every", type=int, default=500)
    p.add_argument("--eval-every", type=int, default=1000)
    p.add_argument("--eval-count", type=int, default=96)
    p.add_argument("--resume", action="store_true")
    p.add_argument("--new-lessons", action="store_true", help="with --resume: begin a feed of this --seed instead of going on with the old one")
    return p.parse_args()


def build(args):
    """The model, its parameters as one vector, and the state to go on from, if any."""
    state = None
    if args.resume and (args.run / "state.pt").exists():
        state = torch.load(args.run / "state.pt", weights_only=False)
    model = net.Net(net.Shape(**state["shape"]) if state else net.Shape())
    model.reset(args.seed)
    flat = Flat(list(model.parameters()))
    if state:
        with torch.no_grad():
            flat.master.copy_(state["master"])
            flat.average.copy_(state["average"])
            flat.work.copy_(flat.master)
        for moe, bias in zip(model.moes(), state["bias"]):
            moe.bias.copy_(bias)
        flat.optimizer.load_state_dict(state["optimizer"])
    return model, flat, state


def main():
    args = parse()
    torch.set_num_threads(1)
    args.run.mkdir(parents=True, exist_ok=True)
    args.tok = tokenizers.Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    model, flat, state = build(args)
    feed, first = Feed(args.tok, args.seed, jump=args.jump), 0
    if state:
        first = state["step"]
        if not args.new_lessons:
            feed.restore(state["feed"])
    print(f"{flat.master.numel() / 1e6:.2f} M parameters", flush=True)
    began, cpu, mean = time.time(), time.process_time(), None
    for step in range(first, args.steps):
        loss, _ = forward_loss(model, feed.batch())
        loss.backward()
        norm = flat.step(rate_at(step, args))
        worst = balance(model)
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if step % 10 == 9:
            flat.blend(0.98)
        if step % 50 == 49:
            used = time.process_time() - cpu
            print(f"step {step + 1} loss {mean:.4f} norm {norm:.2f} load {worst:.2f} wall {time.time() - began:.0f} s cpu {used:.0f} s "
                  f"{(step + 1 - first) * ROW * ROWS / used:.0f} tokens/cpu-s", flush=True)
        if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            save(args.run / "state.pt", model, flat, step + 1, feed, args)
        if (step + 1) % args.eval_every == 0 or step + 1 == args.steps:
            cool = step + 1 > args.steps - args.cooldown
            print("eval", step + 1, json.dumps(evaluate(model, flat, args, args.eval_count, not cool)), flush=True)


if __name__ == "__main__":
    main()
