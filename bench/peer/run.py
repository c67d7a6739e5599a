#!/usr/bin/env python3
"""Measures Fathom beside llama.cpp and ik_llama.cpp on the same synthetic models, bits and threads.

  bench/peer/run.py [--quick] [--rounds N] [--only M-int8] [--folder build/peer] [--out build/peer/results]
  bench/peer/run.py --neighbour     the part of its speed each engine keeps beside a busy process per processor

The engines take turns, each in a process of its own; figures are medians over the rounds. Writes OUT.json and OUT.md.
docs/performance.md says how the bound of a cell is counted."""
import argparse
import json
import math
import os
import pathlib
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from importlib import metadata

import make_models
from shapes import SHAPES, Machine, bound_stages

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CELL_PROGRAM = pathlib.Path(os.environ.get("PEER_CELL", ROOT / "build/release/bench/peer_cell"))
FATHOM = pathlib.Path(os.environ.get("FATHOM", ROOT / "build/release/fathom"))
PEER_FORMATS = {"bf16": "half", "int8": "q8_0", "int4": "q4_0"}
BUSY_SHARE_MAX = 0.05  # of all processors, by other processes
NOISE = 0.95
QUICK_SECONDS = 540
PROCESS_SECONDS_MAX = 900

PREFILL = ["prefill:512", "prefill:2048"]
SHORT = [f"decode:{b}@128" for b in (1, 4, 16, 64)]
LONG = [f"decode:{b}@2048" for b in (1, 16, 64)]
FULL = [(model, weights, cells) for model in ("M", "S") for weights in ("bf16", "int8", "int4")
        for cells in (PREFILL, SHORT, LONG)]
QUICK = [("M", "bf16", ["prefill:512"]), ("M", "bf16", ["decode:1@128", "decode:16@128"]),
         ("M", "bf16", ["decode:16@2048"]), ("M", "int8", ["prefill:512"]),
         ("M", "int8", ["decode:1@128", "decode:16@128"]), ("M", "int4", ["prefill:512"]),
         ("M", "int4", ["decode:1@128", "decode:16@128"]), ("S", "bf16", ["prefill:512"]),
         ("S", "bf16", ["decode:1@128", "decode:64@128"])]
# Cells of Fathom in other forms: FP8 weights beside the peers' 8 bits, and M mapped from its converted folder.
FORM_CELLS = {"prefill:512", "decode:1@128"}


def cpu_flags():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].split() for line in file if line.startswith("flags")), [])


class Models:
    """Paths of the checkpoints, made when first asked for."""

    def __init__(self, folder):
        self.folder = folder
        native = "bf16" if "avx512_bf16" in cpu_flags() else "f16"
        # The registry's ik wheel knows no BF16 instructions: F16 is its fastest 16-bit form.
        self.half = {"llama": native, "ik": native if os.environ.get("IK_LIB") else "f16"}

    def variant(self, engine, shape):
        # ik_llama.cpp splits kv_b itself, unless the latent is 512 + 64 as in the published models.
        whole = engine == "ik" and (shape.kv_lora, shape.rope) != (512, 64)
        return self.half[engine] + ("-whole" if whole else "")

    def prepare(self, name):
        shape = SHAPES[name]
        make_models.make(shape, self.folder, sorted({self.variant(e, shape) for e in ("llama", "ik")}))

    def converted(self, name, weights):
        target = self.folder / f"{name}-{weights}-fathom"
        part = target.with_suffix(".part")
        if not target.exists():
            shutil.rmtree(part, ignore_errors=True)
            subprocess.run([FATHOM, "model", "convert", self.folder / f"{name}-hf", part, "--weights", weights],
                           check=True)
            part.rename(target)
        return target

    def path(self, engine, name, weights):
        shape = SHAPES[name]
        if engine == "fathom-mapped":
            return self.converted(name, weights)
        if engine.startswith("fathom"):
            return self.folder / f"{name}-hf"
        variant = self.variant(engine, shape)
        source = self.folder / f"{name}-{variant}.gguf"
        kind = PEER_FORMATS[weights]
        if kind == "half":
            return source
        form = "-whole" if variant.endswith("-whole") else ""
        target = self.folder / f"{name}-{kind}{form}.gguf"
        if not target.exists():
            subprocess.run([sys.executable, HERE / "peer_cell.py", "llama", source, "--quantize", target, kind],
                           check=True)
        return target


def command(engine, models, model, weights, cells, threads):
    path = models.path(engine, model, weights)
    if engine.startswith("fathom"):
        form = "fp8" if engine == "fathom-fp8" else weights
        return [CELL_PROGRAM, path, form, *cells, "--threads", str(threads)]
    return [sys.executable, HERE / "peer_cell.py", engine, path, *cells, "--threads", str(threads)]


def wanted_cells(engine, model, weights, cells):
    """Of `cells`, those that are measured with this engine."""
    if engine == "fathom-fp8":
        return [c for c in cells if weights == "int8" and c in FORM_CELLS]
    if engine == "fathom-mapped":
        return [c for c in cells if model == "M" and c in FORM_CELLS]
    return cells


def warm_page_cache(path):
    for file in [path] if path.is_file() else sorted(path.glob("*.safetensors")):
        with open(file, "rb", buffering=0) as data:
            while data.read(1 << 24):
                pass


def processor_name():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")


def busy_seconds():
    with open("/proc/stat") as file:
        fields = list(map(int, file.readline().split()[1:]))
    return (sum(fields[:3]) + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK")


def json_lines(args):
    """The program's JSON lines, and the share of the processors that others took meanwhile."""
    begin, busy = time.monotonic(), busy_seconds()
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=PROCESS_SECONDS_MAX)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    elapsed = time.monotonic() - begin
    others = max(0.0, busy_seconds() - busy - used) / (elapsed * os.cpu_count())
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, args))}: exit {done.returncode}: {done.stderr.strip()[-400:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], others


def measure_peaks(threads):
    return json_lines([CELL_PROGRAM, "--peaks", "--threads", threads])[0][0]


class Results:
    def __init__(self):
        self.cells = {}  # (model, weights, cell) -> engine -> [figures]
        self.loads = {}  # (model, weights, engine) -> [figures]
        self.peaks = []
        self.systems = {}
        self.disturbed = []

    def add(self, model, weights, engine, lines, others):
        if others > BUSY_SHARE_MAX:
            self.disturbed.append({"model": model, "weights": weights, "engine": engine, "others": round(others, 3)})
        load = {}
        for line in lines:
            cell = line.pop("cell")
            if cell == "load":
                load.update(line)
                self.systems[engine] = line.get("system") or line.get("isa")
            elif cell == "memory":
                load.update(line)
            else:
                line["others"] = round(others, 3)
                self.cells.setdefault((model, weights, cell), {}).setdefault(engine, []).append(line)
        self.loads.setdefault((model, weights, engine), []).append(load)

    def machine(self):
        """Medians over the looks between the runs, each of which is the best of several samples."""
        return Machine(**{key: statistics.median(p[key] for p in self.peaks) for key in ("read", "fma", "bf16", "int8")})


def bound_of(model, weights, cell, distinct, machine):
    shape = SHAPES[model]
    kind, numbers = cell.split(":")
    if kind == "prefill":
        tokens = int(numbers)
        distinct = min(distinct, shape.moe_layers * shape.experts)
        stages = bound_stages(shape, weights, machine, tokens, [(0, tokens)], 1, distinct, prefill=True)
        return tokens, stages
    batch, context = map(int, numbers.split("@"))
    return batch, bound_stages(shape, weights, machine, batch, [(context, 1)] * batch, batch, distinct, prefill=False)


def machine_of(figures):
    """What the machine could do in the seconds of one run of a cell."""
    return Machine(**{key: figures[key] for key in ("read", "fma", "bf16", "int8")})


def row_of(key, engines, machine):
    model, weights, cell = key
    speed = {e: statistics.median(f["tokens_per_s"] for f in figures) for e, figures in engines.items()}
    row = {"model": model, "weights": weights, "cell": cell, "tokens_per_s": speed,
           "disturbed": any(f["others"] > BUSY_SHARE_MAX for figures in engines.values() for f in figures)}
    peers = [speed[e] for e in ("llama", "ik") if e in speed]
    if "fathom" in speed:
        ours = engines["fathom"]
        bounds = [bound_of(model, weights, cell, f["distinct_experts"], machine_of(f)) for f in ours]
        tokens = bounds[0][0]
        shares = [f["tokens_per_s"] * sum(stages) / tokens for f, (_, stages) in zip(ours, bounds)]
        distinct = statistics.median(f["distinct_experts"] for f in ours)
        _, stages_between = bound_of(model, weights, cell, distinct, machine)
        stages = [statistics.median(column) for column in zip(*(stages for _, stages in bounds))]
        row.update(share=statistics.median(shares), share_between_runs=speed["fathom"] * sum(stages_between) / tokens,
                   distinct_experts=distinct, bound_s=dict(zip(("dense", "experts", "attention"), stages)),
                   stages_s={name: statistics.median(f[name + "_s"] for f in ours)
                             for name in ("dense", "mlp", "attention", "exchange", "model")})
        if peers:
            row["ratio"] = speed["fathom"] / max(peers)
    if "fathom-fp8" in speed and peers:
        row["fp8_ratio"] = speed["fathom-fp8"] / max(peers)
    if "fathom-mapped" in speed and "fathom" in speed:
        row["mapped_ratio"] = speed["fathom-mapped"] / speed["fathom"]
    return row


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def number(value, digits=0):
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value):
    return f"{number(None if value is None else 100 * value)} %"


def markdown(report):
    m = report["machine"]
    lines = [f"{report['processor']}, {report['threads']} threads, {report['isa']}; medians of {report['rounds']} rounds.",
             f"Between the runs, medians of the best of five samples: read {m['read'] / 1e9:.1f} GB/s, FMA {m['fma'] / 1e9:.0f} GFLOP/s, "
             f"BF16 {m['bf16'] / 1e9:.0f} GFLOP/s, int8 {m['int8'] / 1e9:.0f} Gop/s.",
             "Peers: " + "; ".join(f"{k} {v}" for k, v in report["peers"].items()) + ".", "",
             "| model | weights | cell | Fathom | llama.cpp | ik_llama.cpp | ratio to the faster | of the bound | by figures between the runs |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in report["cells"]:
        speed = row["tokens_per_s"]
        mark = " *" if row["disturbed"] else ""
        lines.append(f"| {row['model']} | {row['weights']} | {row['cell']}{mark} | {number(speed.get('fathom'), 1)} | "
                     f"{number(speed.get('llama'), 1)} | {number(speed.get('ik'), 1)} | "
                     f"{number(row.get('ratio'), 2)} | {percent(row.get('share'))} | {percent(row.get('share_between_runs'))} |")
    lines += ["", f"Geometric mean of the ratios: {number(report['geometric_mean'], 2)}."]
    slower = [f"{r['model']} {r['weights']} {r['cell']}" for r in report["cells"] if r.get("ratio", 1) < NOISE]
    lines.append("Slower than a peer beyond noise: " + (", ".join(slower) or "no cell") + ".")
    fp8 = [f"{r['model']} {r['cell']} {r['tokens_per_s']['fathom-fp8']:.1f} tokens/s, {r['fp8_ratio']:.2f} of the "
           "faster peer's 8 bits" for r in report["cells"] if "fp8_ratio" in r]
    if fp8:
        lines.append("FP8 weights: " + "; ".join(fp8) + ".")
    mapped = [f"{r['model']} {r['weights']} {r['cell']} {r['mapped_ratio']:.2f}" for r in report["cells"]
              if "mapped_ratio" in r]
    if mapped:
        lines.append("Mapped from the converted folder, of the speed above: " + ", ".join(mapped) + ".")
    if report["disturbed"]:
        lines.append(f"\\* Other processes took more than 5 % of the processors in {len(report['disturbed'])} runs.")
    return "\n".join(lines) + "\n"


def stage_table(report):
    lines = ["", "Milliseconds of one decode step or one prefill, Fathom (bound):", "",
             "| model | weights | cell | dense and head | experts | attention | exchange | around |", "|---|---|---|---|---|---|---|---|"]
    for row in report["cells"]:
        if "stages_s" not in row:
            continue
        s, b = row["stages_s"], row["bound_s"]
        around = s["model"] - s["dense"] - s["mlp"] - s["attention"] - s["exchange"]
        lines.append(f"| {row['model']} | {row['weights']} | {row['cell']} | {1e3 * s['dense']:.2f} ({1e3 * b['dense']:.2f}) | "
                     f"{1e3 * s['mlp']:.2f} ({1e3 * b['experts']:.2f}) | {1e3 * s['attention']:.2f} "
                     f"({1e3 * b['attention']:.2f}) | {1e3 * s['exchange']:.2f} | {1e3 * around:.2f} |")
    lines += ["", "| model | weights | engine | ready after, s | memory | of weights + KV |", "|---|---|---|---|---|---|"]
    for load in report["loads"]:
        memory = load.get("resident_bytes")
        part = memory / (load["weight_bytes"] + load["kv_bytes"]) if memory else None
        lines.append(f"| {load['model']} | {load['weights']} | {load['engine']} | {load['load_s']:.1f} | "
                     f"{number(memory and memory / 1e9, 2)} GB | {number(part, 2)} |")
    return "\n".join(lines) + "\n"


def peer_versions():
    versions = {}
    for engine, package, variable in (("llama.cpp", "llama-cpp-python", "LLAMA_LIB"),
                                      ("ik_llama.cpp", "ik-llama-cpp-python", "IK_LIB")):
        if os.environ.get(variable):
            versions[engine] = f"({variable}={os.environ[variable]})"
        else:
            built = "built here" if engine == "llama.cpp" else "the registry's wheel, AVX2 only"
            versions[engine] = f"({package} {metadata.version(package)}, {built})"
    return versions


def neighbour_test(models, args):
    """Each engine alone and beside as many busy processes as there are processors, in turns."""
    cells = ["prefill:512", "decode:16@128"]
    kept = {}
    for round_idx in range(args.rounds):
        for engine in ("fathom", "llama", "ik"):
            speed = []
            for busy in (0, os.cpu_count()):
                others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
                try:
                    lines, _ = json_lines(command(engine, models, "S", "int8", cells, args.threads))
                finally:
                    for other in others:
                        other.kill()
                        other.wait()
                speed.append({x["cell"]: x["tokens_per_s"] for x in lines if "tokens_per_s" in x})
            for cell in cells:
                kept.setdefault((engine, cell), []).append(speed[1][cell] / speed[0][cell])
    for (engine, cell), values in kept.items():
        print(f"S int8 {cell:14} {engine:7} keeps {100 * statistics.median(values):3.0f} % beside {os.cpu_count()} "
              "busy processes")


def report_of(results, args, rounds):
    machine = results.machine()
    rows = [row_of(key, engines, machine) for key, engines in results.cells.items()]
    loads = [{"model": m, "weights": w, "engine": e, "load_s": statistics.median(x["seconds"] for x in runs),
              **{k: runs[-1][k] for k in ("weight_bytes", "kv_bytes", "resident_bytes") if k in runs[-1]}}
             for (m, w, e), runs in results.loads.items()]
    return {"processor": processor_name(), "kernel": platform.release(), "threads": args.threads, "rounds": rounds,
            "isa": results.systems.get("fathom", ""), "systems": results.systems, "peers": peer_versions(),
            "machine": vars(machine), "cells": rows, "loads": loads, "disturbed": results.disturbed,
            "geometric_mean": geometric_mean([r["ratio"] for r in rows if "ratio" in r])}


def run_groups(groups, models, args):
    results, begin = Results(), time.monotonic()
    results.peaks.append(measure_peaks(args.threads))
    for round_idx in range(args.rounds):
        for model, weights, cells in groups:
            if args.quick and time.monotonic() - begin > QUICK_SECONDS:
                return results, round_idx + 1
            for engine in args.engines:
                wanted = wanted_cells(engine, model, weights, cells)
                if not wanted:
                    continue
                warm_page_cache(models.path(engine, model, weights))
                try:
                    lines, others = json_lines(command(engine, models, model, weights, wanted, args.threads))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(f"{engine} {model} {weights} {wanted}: {error}", file=sys.stderr)
                    continue
                results.add(model, weights, engine, lines, others)
                for line in lines:
                    if "tokens_per_s" in line:
                        print(f"round {round_idx + 1}  {model} {weights:5} {engine:10} {line['tokens_per_s']:9.1f} tokens/s"
                              f"  others {100 * others:.0f} %", flush=True)
            results.peaks.append(measure_peaks(args.threads))
    return results, args.rounds


# Of the logits' standard deviation. After one token only rounding differs; after many, near-ties of the gate fall
# differently and change whole experts. ik_llama.cpp ignores the gate's groups and is compared with nobody.
CROSS_CHECK_LIMITS = {1: 0.02, 64: 0.15}


def cross_check(models, args):
    """Logits of Fathom (BF16) and llama.cpp on S after the same tokens: the same numbers, so nearly the same logits."""
    import numpy as np
    checks = []
    for count, limit in CROSS_CHECK_LIMITS.items():
        ours, _ = json_lines([CELL_PROGRAM, models.path("fathom", "S", "bf16"), "bf16", "--logits", count])
        theirs, _ = json_lines([sys.executable, HERE / "peer_cell.py", "llama", models.path("llama", "S", "bf16"),
                                "--logits", count])
        a, b = (np.array(next(x["logits"] for x in lines if "logits" in x)) for lines in (ours, theirs))
        checks.append({"tokens": count, "relative_rms": float(np.sqrt(((a - b) ** 2).mean()) / b.std()),
                       "correlation": float(np.corrcoef(a, b)[0, 1]), "same_choice": bool(a.argmax() == b.argmax()),
                       "limit": limit})
        if not checks[-1]["relative_rms"] <= limit:
            raise SystemExit(f"logits differ from llama.cpp's: {json.dumps(checks[-1])}")
    return checks


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--rounds", type=int, default=0)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--only", default="", help="MODEL, MODEL-WEIGHTS or MODEL-WEIGHTS-CELL, by commas")
    ap.add_argument("--engines", default="fathom,llama,ik,fathom-fp8,fathom-mapped")
    ap.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/peer")
    ap.add_argument("--out", type=pathlib.Path, default=ROOT / "build/peer/results")
    ap.add_argument("--neighbour", action="store_true", help="speed kept beside busy processes, S int8")
    ap.add_argument("--check", action="store_true", help="only compare logits with llama.cpp")
    args = ap.parse_args()
    args.engines = args.engines.split(",")
    args.rounds = args.rounds or (2 if args.quick else 3)
    if args.neighbour:
        args.only = "S-int8"
    only = [o for o in args.only.split(",") if o]
    groups = []
    for model, weights, cells in QUICK if args.quick else FULL:
        kept = [c for c in cells if not only or any(f"{model}-{weights}-{c}".startswith(o) for o in only)]
        if kept:
            groups.append((model, weights, kept))
    models = Models(args.folder)
    for name in sorted({"S", *(g[0] for g in groups)}):
        models.prepare(name)
    for engine in args.engines:
        for model, weights, cells in groups:
            if wanted_cells(engine, model, weights, cells):
                models.path(engine, model, weights)
    check = cross_check(models, args) if "llama" in args.engines else None
    if check:
        print("logits of S beside llama.cpp's:", json.dumps(check))
    if args.check:
        return
    if args.neighbour:
        return neighbour_test(models, args)
    results, rounds = run_groups(groups, models, args)
    report = report_of(results, args, rounds)
    report["cross_check"] = check
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    text = markdown(report) + stage_table(report)
    args.out.with_suffix(".md").write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
