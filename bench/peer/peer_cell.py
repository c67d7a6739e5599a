#!/usr/bin/env python3
"""Runs cells of one model on a peer engine through its C API and prints one JSON line for each.

  peer_cell.py llama|ik MODEL.gguf CELL... [--threads 2] [--logits N] [--quantize OUT.gguf TYPE]
  CELL: prefill:TOKENS or decode:BATCH@CONTEXT; decode cells of one context share one prefilled sequence

Decode sequences own their KV: the prefilled one is copied for each. LLAMA_LIB and IK_LIB name another libllama.so."""
import argparse
import ctypes
import json
import os
import statistics
import sys
import time

import numpy as np

KV_F16 = 1
UBATCH = 512
DECODE_SECONDS = 2.5  # of steps per cell
DECODE_STEPS = (3, 48)


def import_bindings(engine):
    """The peers write their logs to the error stream; it is silenced for good, and ours kept."""
    ours = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stderr = ours
    if engine == "llama":
        if os.environ.get("LLAMA_LIB"):
            os.environ["LLAMA_CPP_LIB_PATH"] = os.path.dirname(os.path.abspath(os.environ["LLAMA_LIB"]))
        import llama_cpp.llama_cpp as api
        api.llama_log_set(ctypes.cast(None, api.llama_log_callback), None)
        return api
    if os.environ.get("IK_LIB"):
        os.environ["IK_LLAMA_CPP_LIB_PATH"] = os.path.abspath(os.environ["IK_LIB"])
    import ik_llama_cpp._ctypes_api as api
    return api


class Llama:
    """llama.cpp: one KV stream per sequence."""

    def __init__(self, api, path, threads):
        self.api, self.threads = api, threads
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = True  # weights repacked for this processor
        self.model = api.llama_model_load_from_file(path.encode(), params)
        self.decode, self.logits_of = api.llama_decode, api.llama_get_logits_ith
        self.finish = api.llama_synchronize

    def system(self):
        return self.api.llama_print_system_info().decode().strip()

    def context(self, sequences, tokens_each):
        p = self.api.llama_context_default_params()
        p.n_ctx, p.n_seq_max = sequences * tokens_each, sequences
        p.n_batch, p.n_ubatch = 2048, UBATCH
        p.n_threads = p.n_threads_batch = self.threads
        p.flash_attn_type, p.type_k, p.type_v = 1, KV_F16, KV_F16
        p.kv_unified, p.no_perf = False, True
        return self.api.llama_init_from_model(self.model, p)

    def clear(self, ctx):
        self.api.llama_memory_clear(self.api.llama_get_memory(ctx), False)

    def cut(self, ctx, sequence, tokens):
        self.api.llama_memory_seq_rm(self.api.llama_get_memory(ctx), sequence, tokens, -1)

    def copy_first(self, ctx, begin, end):
        for sequence in range(begin, end):
            self.api.llama_memory_seq_cp(self.api.llama_get_memory(ctx), 0, sequence, -1, -1)

    def free(self, ctx):
        self.api.llama_free(ctx)


class IkLlama:
    """ik_llama.cpp: one cache for all sequences; a copy is written through saved state, into cells of its own."""

    def __init__(self, api, path, threads):
        self.api, self.lib, self.threads = api, api._lib, threads
        lib = self.lib
        lib.llama_state_seq_get_size.restype = ctypes.c_size_t
        lib.llama_state_seq_get_size.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32]
        for call in (lib.llama_state_seq_get_data, lib.llama_state_seq_set_data):
            call.restype = ctypes.c_size_t
            call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_uint32]
        lib.llama_kv_cache_seq_rm.restype = ctypes.c_bool
        lib.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p] + [ctypes.c_int32] * 3
        lib.llama_synchronize.restype, lib.llama_synchronize.argtypes = None, [ctypes.c_void_p]
        lib.llama_print_system_info.restype = ctypes.c_char_p
        api.llama_backend_init()
        p = api.llama_model_default_params()
        p.n_gpu_layers, p.mla, p.flash_attn = 0, 3, True
        p.repack_tensors, p.use_mmap = True, False
        p.n_seq_max, p.n_ubatch = 64, UBATCH
        self.model = api.llama_model_load_from_file(path.encode(), p)
        self.decode, self.finish, self.logits_of = api.llama_decode, lib.llama_synchronize, api.llama_get_logits_ith

    def system(self):
        return self.lib.llama_print_system_info().decode().strip()

    def context(self, sequences, tokens_each):
        p = self.api.llama_context_default_params()
        p.n_ctx, p.n_seq_max = sequences * tokens_each, sequences
        p.n_batch, p.n_ubatch = 2048, UBATCH
        p.n_threads = p.n_threads_batch = self.threads
        p.flash_attn, p.mla_attn, p.type_k, p.type_v = True, 3, KV_F16, KV_F16
        p.fused_moe_up_gate = p.grouped_expert_routing = True
        return self.api.llama_init_from_model(self.model, p)

    def clear(self, ctx):
        self.api.llama_kv_cache_clear(ctx)

    def cut(self, ctx, sequence, tokens):
        self.lib.llama_kv_cache_seq_rm(ctx, sequence, tokens, -1)

    def copy_first(self, ctx, begin, end):
        size = self.lib.llama_state_seq_get_size(ctx, 0, 0)
        state = (ctypes.c_uint8 * size)()
        size = self.lib.llama_state_seq_get_data(ctx, ctypes.addressof(state), size, 0, 0)
        for sequence in range(begin, end):
            if not self.lib.llama_state_seq_set_data(ctx, ctypes.addressof(state), size, sequence, 0):
                raise RuntimeError("llama_state_seq_set_data failed")

    def free(self, ctx):
        self.api.llama_free(ctx)


class Batch:
    """A llama_batch whose arrays numpy writes; sequence ids change only when a cell's batch does."""

    def __init__(self, api, capacity):
        self.raw = api.llama_batch_init(capacity, 0, 1)
        view = np.ctypeslib.as_array
        self.token, self.position = view(self.raw.token, (capacity,)), view(self.raw.pos, (capacity,))
        self.wanted = view(self.raw.logits, (capacity,))
        view(self.raw.n_seq_id, (capacity,))[:] = 1

    def resize(self, sequences):
        self.raw.n_tokens = len(sequences)
        for i, sequence in enumerate(sequences):
            self.raw.seq_id[i][0] = sequence


class Runner:
    def __init__(self, peer, vocab):
        self.peer, self.vocab = peer, vocab
        self.batch = Batch(peer.api, 2048)
        self.rng = np.random.default_rng(7)

    def tokens(self, count):
        return self.rng.integers(256, self.vocab - 8, count)

    def step(self, ctx):
        code = self.peer.decode(ctx, self.batch.raw)
        if code:
            raise RuntimeError(f"llama_decode = {code}")
        self.peer.finish(ctx)

    def prefill_once(self, ctx, tokens):
        count = len(tokens)
        self.batch.resize([0] * count)
        self.batch.token[:count], self.batch.position[:count] = tokens, np.arange(count)
        self.batch.wanted[:count] = 0
        self.batch.wanted[count - 1] = 1
        begin = time.perf_counter()
        self.step(ctx)
        return time.perf_counter() - begin

    def prefill(self, count, runs=2):
        ctx = self.peer.context(1, max(count, 256))
        self.prefill_once(ctx, self.tokens(min(count, UBATCH)))
        times = []
        for _ in range(runs):
            self.peer.clear(ctx)
            times.append(self.prefill_once(ctx, self.tokens(count)))
        self.peer.free(ctx)
        return {"tokens_per_s": count / statistics.median(times), "filling": 0.0}

    def decode_cells(self, context, batches):
        ctx = self.peer.context(max(batches), (context + 64 + 255) // 256 * 256)
        self.prefill_once(ctx, self.tokens(context))
        have = 1
        for count in sorted(batches):
            self.peer.copy_first(ctx, have, count)
            have = max(have, count)
            yield count, self.decode(ctx, context, count)
            for sequence in range(count):
                self.peer.cut(ctx, sequence, context)
        self.peer.free(ctx)

    def decode(self, ctx, context, count):
        self.batch.resize(range(count))
        self.batch.wanted[:count] = 1
        times, filling = [], 0.0
        for i in range(DECODE_STEPS[1] + 1):  # the first makes the graph and copies KV
            begin = time.perf_counter()
            self.batch.token[:count], self.batch.position[:count] = self.tokens(count), context + i
            filled = time.perf_counter()
            self.step(ctx)
            if i == 0:
                continue
            times.append(time.perf_counter() - begin)
            filling += filled - begin
            if len(times) >= DECODE_STEPS[0] and sum(times) > DECODE_SECONDS:
                break
        return {"tokens_per_s": count / statistics.median(times), "steps": len(times),
                "filling": filling / sum(times)}


def first_logits(runner, count):
    """Logits after `count` fixed tokens, as the cross-check of the engines compares them."""
    ctx = runner.peer.context(1, 512)
    runner.prefill_once(ctx, 256 + np.arange(count) * 37 % (runner.vocab - 512))
    out = np.ctypeslib.as_array(runner.peer.logits_of(ctx, count - 1), (runner.vocab,)).astype(float).tolist()
    runner.peer.free(ctx)
    return out


def quantize(api, source, target, kind):
    params = api.llama_model_quantize_default_params()
    params.ftype = {"q8_0": 7, "q4_0": 2}[kind]
    params.pure = True  # every matrix in the named type, the head too
    params.nthread = 2
    code = api.llama_model_quantize(source.encode(), (target + ".part").encode(), ctypes.byref(params))
    if code:
        raise SystemExit(f"llama_model_quantize = {code}")
    os.rename(target + ".part", target)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("engine", choices=("llama", "ik"))
    ap.add_argument("model")
    ap.add_argument("cells", nargs="*")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--logits", type=int, default=0)
    ap.add_argument("--quantize", nargs=2, metavar=("OUT", "TYPE"))
    args = ap.parse_args()
    api = import_bindings(args.engine)
    if args.quantize:
        return quantize(api, args.model, *args.quantize)
    begin = time.perf_counter()
    peer = (Llama if args.engine == "llama" else IkLlama)(api, args.model, args.threads)
    if not peer.model:
        raise SystemExit(f"{args.engine} does not load {args.model}")
    load_s = time.perf_counter() - begin
    runner = Runner(peer, api.llama_vocab_n_tokens(api.llama_model_get_vocab(peer.model)))

    def say(cell, **figures):
        print(json.dumps({"cell": cell, **figures}), flush=True)

    say("load", seconds=load_s, system=peer.system())
    if args.logits:
        say("logits", logits=first_logits(runner, args.logits))
    by_context = {}
    for cell in args.cells:
        kind, numbers = cell.split(":")
        if kind == "prefill":
            say(cell, **runner.prefill(int(numbers)))
        else:
            batch, context = map(int, numbers.split("@"))
            by_context.setdefault(context, []).append(batch)
    for context, batches in by_context.items():
        for batch, figures in runner.decode_cells(context, batches):
            say(f"decode:{batch}@{context}", **figures)


if __name__ == "__main__":
    main()
