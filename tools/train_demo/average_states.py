"""Averages two states of one run: weights in flat directions between two minima often do better than either.
Usage: python average_states.py A.pt B.pt OUT.pt --share 0.7 (of B) [--raw]"""

import argparse

import torch


def main():
    p = argparse.ArgumentParser()
    p.add_argument("a")
    p.add_argument("b")
    p.add_argument("out")
    p.add_argument("--share", type=float, default=0.5)
    p.add_argument("--raw", action="store_true", help="mix the last values, not their averages over the last steps")
    args = p.parse_args()
    a, out = torch.load(args.a, weights_only=False), torch.load(args.b, weights_only=False)
    values = "master" if args.raw else "average"
    mixed = [(1 - args.share) * x + args.share * y for x, y in zip([a[values], *a["bias"]], [out[values], *out["bias"]])]
    out["average"], out["master"], out["bias"] = mixed[0], mixed[0].clone(), mixed[1:]
    torch.save(out, args.out)


if __name__ == "__main__":
    main()
