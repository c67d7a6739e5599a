#!/usr/bin/env python3
"""Exact-match accuracy of a running server on the demo model's held-out questions, per kind; standard library only.
Usage: eval_demo.py [--url http://127.0.0.1:8000] [--file models/demo/eval.jsonl] [--count N] [--concurrency N] [--min 0.99]
Exit status: 0 when every kind reaches --min, 1 when one does not, 2 when the server can't be asked."""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

DEFAULT_FILE = pathlib.Path(__file__).resolve().parent.parent / "models" / "demo" / "eval.jsonl"
MAX_TOKENS = 400
TIMEOUT_S = 300
RETRIES = 20


class ServerError(Exception):
    """The server could not be reached or refused a question."""


def parse():
    p = argparse.ArgumentParser(description="Evaluate the demo model through a server's HTTP API.")
    p.add_argument("--url", default="http://127.0.0.1:8000", help="where the server listens")
    p.add_argument("--file", type=pathlib.Path, default=DEFAULT_FILE, help="questions, JSON lines")
    p.add_argument("--model", default=None, help="model name; default: the first one /v1/models lists")
    p.add_argument("--api-key", default=None)
    p.add_argument("--count", type=int, default=0, help="questions per kind; 0 is all")
    p.add_argument("--kinds", default="", help="comma-separated kinds; empty is all")
    p.add_argument("--concurrency", type=int, default=16)
    p.add_argument("--min", type=float, default=0.99, help="least accuracy of each kind")
    p.add_argument("--show", type=int, default=2, help="wrong answers to print per kind")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p.parse_args()


def questions(args):
    wanted = set(filter(None, args.kinds.split(",")))
    by_kind = collections.defaultdict(list)
    for line in args.file.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        kind = by_kind[item["kind"]]
        if (not wanted or item["kind"] in wanted) and (not args.count or len(kind) < args.count):
            kind.append(item)
    return {kind: items for kind, items in by_kind.items() if items}


def call(args, path, body=None):
    """One request; waits and repeats while the server says it is full."""
    headers = {"Content-Type": "application/json"}
    if args.api_key:
        headers["Authorization"] = f"Bearer {args.api_key}"
    data = None if body is None else json.dumps(body).encode()
    for attempt in range(RETRIES):
        request = urllib.request.Request(args.url.rstrip("/") + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if error.code not in (429, 503) or attempt + 1 == RETRIES:
                raise ServerError(f"{path} answered {error.code}: {text[:300]}") from None
            time.sleep(min(float(error.headers.get("Retry-After") or 1), 10))
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise ServerError(f"{path} at {args.url}: {error}") from None
    raise AssertionError("unreachable")


def final(text):
    """The answer without its reasoning and end token."""
    return text.split("</think>")[-1].replace("<｜end▁of▁sentence｜>", "").strip()


def ask(args, item):
    """The server's final answer, and how many tokens it wrote."""
    body = {"model": args.model, "temperature": 0, "max_tokens": MAX_TOKENS}
    if "prompt" in item:
        reply = call(args, "/v1/completions", body | {"prompt": item["prompt"]})
        text = reply["choices"][0]["text"]
    else:
        reply = call(args, "/v1/chat/completions", body | {"messages": item["messages"]})
        text = reply["choices"][0]["message"]["content"] or ""
    return final(text), reply.get("usage", {}).get("completion_tokens", 0)


def main():
    args = parse()
    began = time.monotonic()
    try:
        args.model = args.model or call(args, "/v1/models")["data"][0]["id"]
        result, tokens = {}, 0
        with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
            for kind, items in questions(args).items():
                said = list(pool.map(lambda item: ask(args, item), items))
                wrong = [(i, text) for i, (text, _) in zip(items, said) if text != i["answer"]]
                tokens += sum(n for _, n in said)
                result[kind] = {"right": len(items) - len(wrong), "asked": len(items)}
                report(args, kind, result[kind], wrong)
    except ServerError as error:
        print(f"eval_demo: {error}", file=sys.stderr)
        return 2
    low = [kind for kind, r in result.items() if r["right"] < args.min * r["asked"]]
    right, asked = (sum(r[k] for r in result.values()) for k in ("right", "asked"))
    took = time.monotonic() - began
    if args.json:
        print(json.dumps({"kinds": result, "right": right, "asked": asked, "seconds": round(took, 1), "completion_tokens": tokens}))
    else:
        print(f"{'all':12} {100 * right / max(1, asked):6.2f} %  {right}/{asked}   {took:.1f} s, {tokens / took:.0f} tokens/s")
        print(f"below {args.min:.2%}: {', '.join(low)}" if low else f"every kind reaches {args.min:.2%}")
    return 1 if low or not asked else 0


def report(args, kind, counts, wrong):
    if args.json:
        return
    print(f"{kind:12} {100 * counts['right'] / counts['asked']:6.2f} %  {counts['right']}/{counts['asked']}", flush=True)
    for item, text in wrong[: args.show]:
        asked = item["messages"][-1]["content"]
        print(f"    {item['id']}: {asked!r} -> {text!r}, wanted {item['answer']!r}")


if __name__ == "__main__":
    sys.exit(main())
