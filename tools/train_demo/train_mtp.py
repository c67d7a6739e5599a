"""Adds the multi-token-prediction module to a finished model: only the module learns, the model itself stays as it is.
Usage: python train_mtp.py STATE.pt OUT_STATE.pt --tokenizer DIR --steps N"""

import argparse
import pathlib
import time

import tokenizers
import torch

import net
import train


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("state", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--tokenizer", type=pathlib.Path, required=True)
    p.add_argument("--steps", type=int, default=800)
    p.add_argument("--rate", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=8)
    p.add_argument("--raw", action="store_true", help="take the last values, not their average over the last steps")
    return p.parse_args()


def mtp_loss(model, batch):
    """The module sees the final hidden state of token i and the embedding of token i + 1, and predicts token i + 2."""
    ids, labels, documents, positions = batch
    rope, mask = net.rope_angles(model.s, positions), net.row_mask(documents, torch.bfloat16)
    later, following = torch.full_like(labels, train.IGNORE), ids.roll(-1, 1)
    later[:, :-1] = torch.where(documents[:, 1:] == documents[:, :-1], labels[:, 1:], train.IGNORE)
    with torch.no_grad():
        hidden, embedded = model(ids, rope, mask), model.embed[following]
    return train.loss_of(model.mtp(hidden, embedded, rope, mask), model.head.detach(), later)


def main():
    args = parse()
    torch.set_num_threads(1)
    state = torch.load(args.state, weights_only=False)
    base = net.Net(net.Shape(**state["shape"]))
    flat = train.Flat(list(base.parameters()))
    flat.point(state["master" if args.raw else "average"].bfloat16())
    shape = net.Shape(**state["shape"] | {"num_nextn_predict_layers": 1})
    model = net.Net(shape)
    model.reset(args.seed)
    model.load_state_dict(base.state_dict(), strict=False)
    for moe, bias in zip(model.moes(), state["bias"]):
        moe.bias.copy_(bias)
    whole = [p.data.float() for p in model.parameters()]
    for name, p in model.named_parameters():
        p.data = p.data.bfloat16()
        p.requires_grad_(name.startswith("mtp."))
    learn = train.Flat(list(model.mtp.parameters()))
    feed = train.Feed(tokenizers.Tokenizer.from_file(str(args.tokenizer / "tokenizer.json")), args.seed)
    began, mean = time.time(), 0.5
    for step in range(args.steps):
        loss, hits = mtp_loss(model, feed.batch())
        loss.backward()
        learn.step(args.rate * min(1.0, (step + 1) / 50) * min(1.0, 2 * (1 - step / args.steps)))
        balance_mtp(model)
        mean = 0.97 * mean + 0.03 * hits
        if step % 50 == 49:
            print(f"step {step + 1} loss {float(loss.detach()):.4f} second token right {mean:.4f} wall {time.time() - began:.0f} s", flush=True)
    save(args, model, state, shape, whole)


def balance_mtp(model):
    moe = model.mtp.layer.mlp
    load = moe.load.float()
    moe.bias += train.BIAS_STEP * torch.sign(load.mean() - load)
    moe.bias -= moe.bias.mean()


def save(args, model, state, shape, whole):
    """A state that export.py reads: the base model's values untouched, the module's appended."""
    values = [w if not name.startswith("mtp.") else p.data.float() for (name, p), w in zip(model.named_parameters(), whole)]
    for p, v in zip(model.parameters(), values):
        p.data, p.grad = v, None
    flat = train.Flat([p.requires_grad_() for p in model.parameters()])
    torch.save({"step": state["step"], "master": flat.master.detach(), "average": flat.master.detach(), "bias":
                [m.bias for m in model.moes()], "shape": vars(shape)}, args.out)


if __name__ == "__main__":
    main()
