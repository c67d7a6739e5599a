#!/usr/bin/env python3
"""Streams from many clients at once and prints what users feel: tokens/s, time to first token, gaps between tokens.

  bench/serve_load.py [--url http://127.0.0.1:8000] [--clients 32] [--requests 96] [--prompt-tokens 128] [--new-tokens 64]

Prompts are random token ids, salted per run, so that the prefix cache does not answer for the engine; the hit rate is
printed to prove it. The first request of each client is a warm-up and is left out. Standard library only."""
import argparse
import asyncio
import json
import platform
import random
import statistics
import time
import urllib.parse
import urllib.request

ap = argparse.ArgumentParser()
ap.add_argument("--url", default="http://127.0.0.1:8000")
ap.add_argument("--clients", type=int, default=32)
ap.add_argument("--requests", type=int, default=96, help="measured requests over all clients")
ap.add_argument("--prompt-tokens", type=int, default=128)
ap.add_argument("--new-tokens", type=int, default=64)
ap.add_argument("--vocab", type=int, default=1000, help="ids are drawn from [10, vocab)")
args = ap.parse_args()
where = urllib.parse.urlparse(args.url)
rng = random.Random(time.time_ns())


def metric(name):
    text = urllib.request.urlopen(args.url + "/metrics", timeout=10).read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


async def one_request():
    """(submitted, [arrival time of each token])"""
    body = json.dumps({"prompt": [rng.randrange(10, args.vocab) for _ in range(args.prompt_tokens)],
                       "max_tokens": args.new_tokens, "ignore_eos": True, "temperature": 0, "stream": True,
                       "return_token_ids": True}).encode()
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 20)
    submitted = time.perf_counter()
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                 .encode() + body)
    arrivals = []
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        for choice in json.loads(line[6:])["choices"]:
            arrivals += [now] * len(choice["token_ids"])
    writer.close()
    assert len(arrivals) == args.new_tokens, f"{len(arrivals)} tokens instead of {args.new_tokens}"
    return submitted, arrivals


async def client(todo, results):
    await one_request()
    warm.release()
    await start.wait()
    while todo and todo.pop():
        results.append(await one_request())


async def main():
    todo, results = [1] * args.requests, []
    clients = [asyncio.create_task(client(todo, results)) for _ in range(args.clients)]
    for _ in clients:
        await warm.acquire()
    hits, misses = metric("fathom_prompt_hit_tokens_total"), metric("fathom_prompt_miss_tokens_total")
    began = time.perf_counter()
    start.set()
    await asyncio.gather(*clients)
    seconds = time.perf_counter() - began
    hits, misses = metric("fathom_prompt_hit_tokens_total") - hits, metric("fathom_prompt_miss_tokens_total") - misses
    first = sorted(arrivals[0] - submitted for submitted, arrivals in results)
    # Tokens that arrive in one frame have a gap of 0 between them; they count, as a user sees them.
    gaps = sorted(b - a for _, arrivals in results for a, b in zip(arrivals, arrivals[1:]))
    at = lambda values, q: values[min(len(values) - 1, int(q * len(values)))]
    ms = lambda s: f"{s * 1000:.1f} ms"
    median = statistics.median(gaps)
    print(f"machine {platform.processor() or platform.machine()}, {args.clients} clients, {len(results)} requests of "
          f"{args.prompt_tokens} + {args.new_tokens} tokens")
    print(f"generated {len(results) * args.new_tokens / seconds:.0f} tokens/s, hit rate {hits / max(1, hits + misses):.3f}")
    print(f"time to first token p50 {ms(at(first, .5))} p99 {ms(at(first, .99))}")
    print(f"gap median {ms(median)} p99 {ms(at(gaps, .99))} = {at(gaps, .99) / median if median else float('inf'):.2f} x")


warm, start = asyncio.Semaphore(0), asyncio.Event()
asyncio.run(main())
