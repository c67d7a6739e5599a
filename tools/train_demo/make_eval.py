"""Writes the held-out evaluation questions as JSON lines. Usage: python make_eval.py OUT.jsonl [--count N]"""

import argparse
import json
import pathlib
import random

import lessons

SEED = 424242
RENDERED = ("tool", "tool_answer", "json")  # sent as a rendered prompt to /v1/completions


def questions(kind, count):
    """Distinct held-out questions of one kind, thinking on."""
    rng, seen = random.Random(f"{SEED} {kind}"), set()
    while len(seen) < count:
        made = lessons.lesson(rng, True, kind)
        text = lessons.render(made.messages, made.tools, True)
        if made.thinking and text not in seen:
            seen.add(text)
            item = {"id": f"{kind}-{len(seen):04d}", "kind": kind, "messages": made.messages, "thought": made.thought,
                    "answer": made.answer}
            if kind in RENDERED:
                item["prompt"] = text
            if made.tools:
                item["tools"] = made.tools
            yield item


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--count", type=int, default=250)
    args = p.parse_args()
    with args.out.open("w") as out:
        for kind in (k for k in lessons.MIX if k not in lessons.EXERCISES):
            for item in questions(kind, args.count):
                out.write(json.dumps(item, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
