"""fathom plan and fathom simulate from outside: what is deployed, exit codes, and one clear line for bad input."""
import json
import pathlib
import re
import subprocess
import tomllib

import pytest
import yaml

from conftest import BINARY, ROOT, Server

PUBLISHED = ["--day-load", "data/day_load.csv", "--decode-nodes", "18", "--prefill-nodes", "4",
             "--tokens-per-s", "19.5"]
ONE_SERVER = ["--model", "deepseek-v2-lite", "--profile", "profiles/cpu-2core.toml", "--requests-per-day", "500",
              "--input-tokens", "300", "--output-tokens", "150", "--input-cv2", "1", "--output-cv2", "0.6",
              "--hit-share", "0.3", "--ttft", "60", "--tokens-per-s", "4", "--mtp-acceptance", "0", "--peak", "2"]


def fathom(*args):
    return subprocess.run([str(BINARY), *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=120)


def serve_flags():
    return set(re.findall(r"--([a-z0-9-]+)", fathom("serve", "--help").stdout))


def emitted(load, form):
    done = fathom("plan", *load, "--emit", form)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_server_is_deployed_with_flags_that_serve_takes():
    known = serve_flags()
    assert "max-running" in known
    table = tomllib.loads(emitted(ONE_SERVER, "toml"))
    assert set(table) == {"model", "hardware", "profile_hash", "serve", "objectives"}
    assert table["serve"]["units"] == 1
    assert set(table["serve"]["options"]) <= known
    sets = [d for d in yaml.safe_load_all(emitted(ONE_SERVER, "kubernetes")) if d["kind"] == "StatefulSet"]
    args = [str(a) for a in sets[0]["spec"]["template"]["spec"]["containers"][0]["args"]]
    assert args[0] == "serve"
    assert {a[2:] for a in args if a.startswith("--")} <= known
    slurm = emitted(ONE_SERVER, "slurm")
    assert set(re.findall(r"--([a-z-]+)", re.search(r'srun fathom serve([^"]*)"', slurm).group(1))) <= known
    # The flags are taken: only the model's folder is missing here.
    refused = fathom(*args)
    assert refused.returncode == 2 and "/models/deepseek-v2-lite" in refused.stderr, refused.stderr


def test_units_of_many_ranks_name_every_unit_and_say_what_is_missing():
    table = tomllib.loads(emitted(PUBLISHED, "toml"))
    units = {role: table[role]["units"] for role in ("prefill", "decode")}
    assert table["decode"]["ranks_per_unit"] == 144 and table["decode"]["options"]["redundant-experts"] == 32
    text = emitted(PUBLISHED, "kubernetes")
    documents = list(yaml.safe_load_all(text))
    sets = [d for d in documents if d["kind"] == "StatefulSet"]
    assert len(sets) == sum(units.values()) == len(documents) - len(sets)
    services = {d["metadata"]["name"] for d in documents if d["kind"] == "Service"}
    assert {d["spec"]["serviceName"] for d in sets} == services
    for form in ("toml", "kubernetes", "slurm"):
        assert "not part of this version" in emitted(PUBLISHED, form)


@pytest.mark.parametrize("load", [ONE_SERVER, PUBLISHED])
def test_slurm_scripts_are_bash(load, tmp_path):
    script = tmp_path / "submit.sh"
    script.write_text(emitted(load, "slurm"))
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert subprocess.run(["bash", "-n", script]).returncode == 0


def test_hours_carry_the_clock_of_the_load():
    rows = re.findall(r"^(\d\d:\d\d) +\d", fathom("plan", *PUBLISHED).stdout, re.M)
    assert rows[0] == "12:00" and rows[-1] == "11:00" and len(rows) == 24


def test_no_plan_is_exit_3_with_the_reason():
    done = fathom("plan", *PUBLISHED[:2], "--tokens-per-s", "500")
    assert done.returncode == 3
    assert re.fullmatch(r"no plan fits: tokens/s per user: a single request gets .*\n", done.stderr)


def test_a_dry_run_of_the_autoscaler_says_what_and_why():
    done = fathom("plan", *PUBLISHED, "--replay", "data/azure_conv_2023.csv", "--replay-rate", "400")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d\d:\d\d:\d\d  decode \d+ -> \d+ \(grow, \d+ tokens/s forecast\)", done.stdout, re.M)
    assert re.search(r"\d+ decisions, \d+ changes; [\d.]+ node-hours", done.stdout)


def test_a_profile_is_fitted_to_a_servers_own_metrics(tmp_path):
    server = Server()
    try:
        for i in range(4):
            body = {"messages": [{"role": "user", "content": f"What is {i} + {i}?"}], "max_tokens": 24}
            assert server.post("/v1/chat/completions", body).status == 200
        (tmp_path / "metrics.txt").write_text(server.get("/metrics").text)
    finally:
        server.process.kill()
        server.process.wait()
    done = fathom("plan", "--model", "models/demo/config.json", "--profile", "profiles/cpu-2core.toml",
                  "--requests-per-day", 500, "--input-tokens", 40, "--output-tokens", 24, "--hit-share", "0.1",
                  "--mtp-acceptance", 0, "--profile-from", tmp_path / "metrics.txt")
    assert done.returncode == 0, done.stderr
    assert re.search(r"measured decode: [\d.e-]+ requests per rank, \d+ tokens of context, [\d.]+ ms", done.stdout)
    assert re.search(r"measured prefill: ", done.stdout)
    assert re.search(r"fitted   decode_phi [\d.]+ \(1 rows", done.stdout), done.stdout + done.stderr


TRACE_LINE = '{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}\n'
PROFILE = (ROOT / "profiles/h800.toml").read_text()

BAD = {
    "torn trace": (TRACE_LINE + TRACE_LINE[:50], ["simulate", "trace", "FILE"], r"FILE:2: "),
    "missing constant": (PROFILE.replace("k_half = 543.0", ""), ["plan", "--profile", "FILE"],
                         r"FILE:\d+: gemm\.k_half: missing constant"),
    "unit that does not divide": ("[decode]\nranks = 100\n", ["simulate", "synthetic", "--fleet", "FILE"],
                                  r"FILE:1: decode\.ranks: 288 expert slots do not divide over 100 ranks"),
    "schedule that does not divide": ("12:00,278,9,28\n", ["simulate", "published-day", "--schedule", "FILE"],
                                      r"FILE:1: nodes: 278 do not divide into 9 units of 18 and 28 of 4"),
    "budget below one unit": ("", ["simulate", "published-day", "--scale", "autoscale", "--budget", "21"],
                              r"--budget: 21 nodes hold no prefill and decode unit"),
    "plan's budget": ("", ["plan", "--nodes-max", "0"], r"nodes_max: a budget below one unit"),
    "measurements": ("decode,40,4989\n", ["plan", "--profile-from", "FILE"], r"FILE:1: time_ms: missing"),
    "torn fleet": ("[prefill\n", ["simulate", "synthetic", "--fleet", "FILE"], r"FILE:1: toml: "),
    "bytes for a fleet": (b"\xff\x00", ["simulate", "synthetic", "--fleet", "FILE"], r"FILE:1: toml: "),
    "torn profile": ("[hardware\n", ["plan", "--profile", "FILE"], r"FILE:1: toml: "),
    "number too large": (PROFILE.replace("543.0", "1e400"), ["simulate", "published-day", "--profile", "FILE"],
                         r"FILE:\d+: "),
    "folder for a file": ("", ["simulate", "synthetic", "--fleet", "src"], r"src: is a directory"),
    "profile without room": (PROFILE.replace("hbm_gb = 80", "hbm_gb = 30"), ["simulate", "synthetic", "--profile", "FILE"],
                             r"FILE: hardware\.hbm_gb: 30 GB leave room for"),
    "folder that cannot be": ("", ["simulate", "published-day", "--out", "FILE"], r"--out: FILE: Not a directory"),
    "plan's folder": ("", ["plan", "--out", "/proc/x"], r"--out: /proc/x: "),
    "no run to compare": ("", ["simulate", "published-day", "--compare", "src"], r"src/summary\.json: cannot be read"),
    "phi": ("", ["simulate", "published-day", "--phi", "-1"], r"--phi: -1 is outside 0\.01\.\.100"),
    "report delay of a replay": ("", ["simulate", "synthetic", "--report-delay", "nan"], r"--report-delay: -?nan is outside"),
    "routers": ("", ["simulate", "synthetic", "--routers", "0"], r"--routers: 0 is outside 1\.\.64"),
    "no tokens": ("", ["simulate", "synthetic", "--input-tokens", "0"], r"--input-tokens: 0 is outside 1\.\."),
    "unit use": ("", ["simulate", "published-day", "--scale", "autoscale", "--unit-use", "nan"],
                 r"--unit-use: -?nan is outside 0\.\.1"),
    "unit speed": ("", ["simulate", "published-day", "--scale", "autoscale", "--unit-speed", "1000"],
                   r"--unit-speed: 1000 tokens/s per user, a decode unit of one request per rank gives "),
    "option of another scale": ("", ["simulate", "published-day", "--budget", "200"],
                                r"--budget: only with --scale autoscale"),
    "fault after midnight": ("", ["simulate", "published-day", "--fault", "unit-loss@24:00"], r"--fault: \"unit-loss@24:00\": "),
    "fault after the trace": ("", ["simulate", "synthetic", "--seconds", "5", "--fault", "unit-loss@01:00"],
                              r"--fault: \"unit-loss@01:00\": the last request arrives after \d s"),
    "price": ("", ["plan", "--price", "nan"], r"--price: -?nan is outside 0\.\.1000000"),
    "emit": ("", ["plan", "--emit", ""], r"--emit: \"\" is none of toml, kubernetes, slurm"),
    "counters of no prompt": ("# HELP x\nfathom_time_to_first_token_seconds_count 1\nfathom_prompt_hit_tokens_total 0\n"
                              "fathom_prompt_miss_tokens_total 0\nfathom_generated_tokens_total 1\n",
                              ["plan", "--profile-from", "FILE"], r"FILE: fathom_prompt_miss_tokens_total: 0, no prompt"),
    "fault on no unit": ("", ["simulate", "published-day", "--fault", "unit-loss@22:00,unit=9"],
                         r"--fault: unit: 9 of 9 decode units"),
    "fault on no rank": ("", ["simulate", "synthetic", "--fault", "slow-rank@00:00,rank=99"],
                         r"--fault: rank: 99 of 32 decode ranks"),
    "fault outside the fraction": ("", ["simulate", "published-day", "--fraction", "0.1", "--fault",
                                        "unit-loss@22:30"], r"--fault: \"unit-loss@22:30\": --fraction 0\.1"),
    "no such file": ("", ["simulate", "trace", "no-such-file"], r"no-such-file: cannot be read"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_exit_2(what, tmp_path):
    text, args, expected = BAD[what]
    bad = tmp_path / "input"
    bad.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = fathom(*[str(bad) if a == "FILE" else a for a in args])
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.fullmatch("error: " + expected.replace("FILE", re.escape(str(bad))) + r".*\n", done.stderr), done.stderr


@pytest.mark.parametrize("args", [
    ["simulate", "published-day", "--seed", "-1"], ["simulate", "published-day", "--seed", "18446744073709551616"],
    ["plan", "--emit", "toml", "--replay", "x"], ["plan", "--emit", "toml", "--out", "x"],
    ["plan", "--trace", "x", "--requests-per-day", "5"], ["plan", "--peak", "2", "--day-load", "x"],
    ["plan", "--replay-rate", "2"], ["simulate", "published-day", "--scale", "autoscale", "--budget", "22.9"],
])
def test_flags_that_contradict_or_wrap_are_one_line_and_exit_2(args):
    done = fathom(*args)
    assert done.returncode == 2 and not done.stdout, done.stdout
    assert len(done.stderr.splitlines()) == 1 and args[-2] in done.stderr, done.stderr


def test_the_same_seed_gives_the_same_files(tmp_path):
    def files(name, seed):
        out = tmp_path / name
        done = fathom("simulate", "published-day", "--fraction", "0.002", "--seed", seed, "--out", out)
        assert done.returncode == 0, done.stderr
        return {p.name: p.read_bytes() for p in sorted(pathlib.Path(out).iterdir())}
    first = files("a", 7)
    assert set(first) >= {"report.html", "summary.json", "hours.csv"}
    assert first == files("b", 7)
    assert first != files("c", 8)
    summary = json.loads(first["summary.json"])
    assert all(summary["profile_hash"].encode() in text for text in first.values())
    assert summary["profile_hash"] in first["report.html"].decode()
    done = fathom("simulate", "published-day", "--fraction", "0.002", "--compare", tmp_path / "a", "--out", tmp_path / "d")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "d/report.html").read_text()
    assert "<td>seed</td><td>1</td><td>7</td><td>set differently</td>" in page
    done = fathom("simulate", "synthetic", "--seconds", "1", "--compare", tmp_path / "a")
    assert done.returncode == 2 and "trace: missing, so not of a replay" in done.stderr, done.stderr


def test_the_worked_examples_print_what_the_page_shows():
    page = (ROOT / "docs/planning.md").read_text().split("## Three worked examples")[1]
    blocks = re.findall(r"^```\n(.*?)^```$", page, re.M | re.S)
    assert len(blocks) == 6
    for command, shown in zip(blocks[::2], blocks[1::2]):
        words = command.replace("\\\n", " ").split()
        assert words[:2] == ["fathom", "plan"]
        done = fathom(*words[1:])
        assert done.returncode == 0, done.stderr
        assert done.stdout == shown
