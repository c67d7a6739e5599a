"""fathom plan and fathom simulate from outside: what is deployed, exit codes, and one clear line for bad input."""
import csv
import io
import json
import pathlib
import re
import subprocess
import tomllib

import pytest
import yaml

from conftest import BINARY, ROOT, SLOWER, Server

PUBLISHED = ["--day-load", "data/day_load.csv", "--decode-nodes", "18", "--prefill-nodes", "4",
             "--tokens-per-s", "19.5"]
ONE_SERVER = ["--model", "deepseek-v2-lite", "--profile", "profiles/cpu-2core.toml", "--requests-per-day", "500",
              "--input-tokens", "300", "--output-tokens", "150", "--input-cv2", "1", "--output-cv2", "0.6",
              "--hit-share", "0.3", "--ttft", "60", "--tokens-per-s", "4", "--mtp-acceptance", "0", "--peak", "2"]


def fathom(*args):
    return subprocess.run([str(BINARY), *map(str, args)], cwd=ROOT, capture_output=True, text=True,
                          timeout=120 * SLOWER)


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
    assert set(re.findall(r"--([a-z-]+)", re.search(r"srun fathom serve([^']*)'", slurm).group(1))) <= known
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


HOSTILE_FOLDERS = ["plain", "two words", 'quo"te', "apo'strophe", "$(touch pwned) `id` $HOME", "a: b #c", "back\\slash",
                   "{x}, [y]", "-rf", "héé ✓", "12", "%s %d", "--", "yes", "~"]
FAKE_SUBMIT = """#!/usr/bin/env bash
for a; do [ "$last" = --wrap ] && exec sh -c "$a"; last=$a; done
exit 9
"""


@pytest.mark.parametrize("folder", HOSTILE_FOLDERS)
def test_a_models_folder_of_any_name_reaches_the_command_unchanged(folder, tmp_path):
    """As a TOML string, as a YAML argument, and through two shells."""
    (tmp_path / folder).mkdir()
    config = tmp_path / folder / "config.json"
    config.write_text((ROOT / "models/demo/config.json").read_text())
    load = ["--model", config, *ONE_SERVER[2:]]
    wanted = f"/models/{folder}"
    assert tomllib.loads(emitted(load, "toml"))["serve"]["options"]["model"] == wanted
    pods = [d for d in yaml.safe_load_all(emitted(load, "kubernetes")) if d["kind"] == "StatefulSet"]
    args = pods[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert all(isinstance(a, str) for a in args) and args[args.index("--model") + 1] == wanted
    for name in (d["metadata"]["name"] for d in pods):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)
    script = tmp_path / "submit.sh"
    script.write_text(emitted(load, "slurm"))
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("sbatch", FAKE_SUBMIT), ("srun", '#!/bin/sh\nprintf "%s\\0" "$@"\n')):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    done = subprocess.run(["bash", script], cwd=tmp_path, env={"PATH": f"{tools}:/usr/bin:/bin"}, capture_output=True)
    assert done.returncode == 0, done.stderr
    words = done.stdout.decode().split("\0")
    assert words[:2] == ["fathom", "serve"] and words[words.index("--model") + 1] == wanted
    assert not (tmp_path / "pwned").exists()


def test_services_listen_where_the_server_does():
    default = re.search(r"--port UINT=(\d+)", fathom("serve", "--help").stdout).group(1)
    for d in yaml.safe_load_all(emitted(PUBLISHED, "kubernetes")):
        if d["kind"] == "Service":
            assert [str(p["port"]) for p in d["spec"]["ports"]] == [default]


@pytest.mark.parametrize("load", [ONE_SERVER, PUBLISHED])
def test_slurm_scripts_are_bash(load, tmp_path):
    script = tmp_path / "submit.sh"
    script.write_text(emitted(load, "slurm"))
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert subprocess.run(["bash", "-n", script]).returncode == 0


def test_hours_carry_the_clock_of_the_load():
    rows = re.findall(r"^(\d\d:\d\d) +\d", fathom("plan", *PUBLISHED).stdout, re.M)
    assert rows[0] == "12:00" and rows[-1] == "11:00" and len(rows) == 24


def test_every_figure_at_a_tenth_less_and_more_of_every_input(tmp_path):
    """What each input does is in the table, and in the report's files."""
    done = fathom("plan", *PUBLISHED, "--sensitivities", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sensitivities.csv").read_text() == done.stdout
    profile_line, table = done.stdout.split("\n", 1)
    assert profile_line.startswith("# profile H800 ")
    rows = list(csv.DictReader(io.StringIO(table)))
    plan, moved = rows[0], {(r["input"], r["change_percent"]): r for r in rows[1:]}
    summary = json.loads((tmp_path / "summary.json").read_text())
    for name, value in summary.items():
        if isinstance(value, (int, float)):
            assert float(plan[name]) == pytest.approx(value, rel=1e-5), name
    inputs = {name for name, _ in moved}
    assert len(moved) == 2 * len(inputs)
    profile = tomllib.loads((ROOT / "profiles/h800.toml").read_text())
    constants = {f"{s}.{k}" for s, t in profile.items() for k, v in t.items() if not isinstance(v, str)}
    assert constants - {"hardware.gpus_per_node"} <= inputs
    flags = fathom("plan", "--help").stdout
    assert len(inputs - constants) >= 20 and "--ttft-forwards" in flags
    assert float(moved["requests_per_day", "+10"]["nodes_peak"]) > float(plan["nodes_peak"])
    assert float(moved["kv_retention_hours", "-10"]["kv_disk_tb"]) == pytest.approx(0.9 * float(plan["kv_disk_tb"]), rel=1e-4)
    page = (tmp_path / "report.html").read_text()
    assert "What stops fewer nodes" in page and all(f"<td>{name}</td>" in page for name in inputs)


def test_no_plan_is_exit_3_with_the_reason():
    done = fathom("plan", *PUBLISHED[:2], "--tokens-per-s", "500")
    assert done.returncode == 3
    assert re.fullmatch(r"no plan fits: tokens/s per user: a single request gets .*\n", done.stderr)


def test_a_dry_run_of_the_autoscaler_says_what_and_why():
    done = fathom("plan", *PUBLISHED, "--replay", "data/azure_conv_2023.csv", "--replay-rate", "400")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d\d:\d\d:\d\d  decode \d+ -> \d+ \(grow, \d+ tokens/s forecast(; \d+ s queued)?\)", done.stdout, re.M)
    assert re.search(r"\d+ decisions, \d+ changes; [\d.]+ node-hours", done.stdout)
    assert re.match(r"profile \S+, hash [0-9a-f]+\n", done.stdout), done.stdout
    tied = fathom("plan", *PUBLISHED, "--replay", "data/azure_conv_2023.csv", "--replay-rate", "400", "--tied")
    targets = re.findall(r"decode \d+ -> (\d+) .* prefill \d+ -> (\d+) ", tied.stdout)
    assert targets and all(int(p) == 3 * int(d) + 2 for d, p in targets), tied.stdout + tied.stderr


def test_hits_are_the_traces_own_unless_given():
    trace = "data/mooncake_conversation.jsonl"
    own = fathom("plan", *PUBLISHED, "--replay", trace)
    assert "of prompt tokens 37.4 % cached: each prompt's own" in own.stdout, own.stdout + own.stderr
    given = fathom("plan", *PUBLISHED, "--replay", trace, "--hit-share", "0.2")
    assert "of prompt tokens 20.0 % cached: the plan's share" in given.stdout, given.stdout + given.stderr
    bound, missing = (fathom("plan", "--trace", trace, "--ttft", "60", *more) for more in ([], ["--hit-share", "0.2"]))
    assert "(37.4 % cached)" in bound.stdout and "(20.0 % cached)" in missing.stdout, missing.stdout + missing.stderr


def test_an_even_policy_takes_fewer_node_hours():
    hours = [float(re.search(r"(\d+) node-hours a day", fathom("plan", *PUBLISHED, "--decode", policy).stdout)[1])
             for policy in ("random", "kv-capped", "fathom")]
    assert hours[0] > hours[1] > hours[2], hours


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


METRICS = """# HELP fathom_generated_tokens_total tokens sampled
# TYPE fathom_generated_tokens_total counter
fathom_generated_tokens_total{model="m"} 5100
fathom_time_to_first_token_seconds_count{model="m"} 100
fathom_prompt_hit_tokens_total{model="m"} 10000
fathom_prompt_miss_tokens_total{model="m"} 40000
fathom_decode_steps_total{model="m"} 500
fathom_decode_step_seconds_total{model="m"} 10
fathom_prefill_steps_total{model="m"} 100
fathom_prefill_step_seconds_total{model="m"} 20
fathom_prefill_tokens_total{model="m"} 40000
"""
FAMILIES = re.findall(r"^(fathom_\w+)", METRICS, re.M)
FIT = ["plan", *ONE_SERVER, "--profile-from"]


def fit(tmp_path, text):
    file = tmp_path / "metrics.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = fathom(*FIT, file)
    assert len(done.stderr.splitlines()) == (done.returncode != 0), done.stderr
    assert done.returncode in (0, 2, 3), done.stderr
    return done, done.stderr.replace(str(file), "FILE")


def test_metrics_that_are_whole_are_fitted(tmp_path):
    done, _ = fit(tmp_path, METRICS)
    assert done.returncode == 0 and "fitted   decode_phi" in done.stdout
    # What is printed as a profile is the fitted one: a plan on it is this plan.
    (tmp_path / "mine.toml").write_text(re.search(r'^base = .*?\n\n', done.stdout, re.M | re.S).group(0))
    own = fathom("plan", *(tmp_path / "mine.toml" if arg == "profiles/cpu-2core.toml" else arg for arg in ONE_SERVER))
    assert own.returncode == 0 and done.stdout.endswith(own.stdout), own.stdout + own.stderr
    shown = re.search(r"fitted   decode_phi ([\d.]+)", done.stdout)[1]
    assert f"{float(re.search(r'^decode_phi = (.*)$', done.stdout, re.M)[1]):.4f}" == shown
    # A label may hold what looks like the end of the labels, other metrics may hold anything.
    odd = METRICS.replace('model="m"', 'model="a} 5 \\" b{"') + 'go_info{v="} x"} NaN\nfathom_queue_depth -1\n'
    assert fit(tmp_path, odd)[0].stdout == done.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_a_metric_that_is_missing_or_no_count_is_named(family, tmp_path):
    line = 1 + METRICS[:METRICS.index(f"\n{family}")].count("\n") + 1
    done, said = fit(tmp_path, re.sub(rf"^{family}.*\n", "", METRICS, flags=re.M))
    assert done.returncode == 2 and said == f"error: FILE: {family}: missing\n"
    for value in ("NaN", "-1", "+Inf", "-Inf", "1e300"):
        done, said = fit(tmp_path, re.sub(rf"^({family}.*) .*", rf"\1 {value}", METRICS, flags=re.M))
        assert done.returncode == 2 and re.fullmatch(rf"error: FILE:{line}: {family}: \S+ is outside 0\.\.1e\+18\n", said), said
    for value in ("", "x", "0x10", "1,5", "5 5 x", "1e999"):
        done, said = fit(tmp_path, re.sub(rf"^({family}.*) .*", rf"\1 {value}", METRICS, flags=re.M))
        assert done.returncode == 2 and said == f"error: FILE:{line}: {family}: no value\n", said


@pytest.mark.parametrize("family", FAMILIES)
def test_a_count_of_zero_is_a_plan_or_one_line(family, tmp_path):
    done, said = fit(tmp_path, re.sub(rf"^({family}.*) .*", r"\1 0", METRICS, flags=re.M))
    assert done.returncode in (0, 2), said
    assert "nan" not in done.stdout and "inf" not in done.stdout.replace("info", "")


def test_metrics_torn_anywhere_are_one_line(tmp_path):
    for end in range(0, len(METRICS), 7):
        done, said = fit(tmp_path, METRICS[:end])
        assert done.returncode == 2, (end, done.stdout)
        assert said.startswith("error: FILE:"), said


@pytest.mark.parametrize("text", [b"", b"\n", b"\0" * 100, b"\xff\xfe\n", b"{}\n", b"fathom_\n", b"decode,1e9,1,1\n",
                                  b"decode,nan,1,1\n", b"decode,1,1,-1\n", b"decode,1,1,1,\x1b[31m\nprefill,1\x1b,1,1\n",
                                  b"decode," * 100000])
def test_what_is_no_measurement_is_one_line(text, tmp_path):
    done, said = fit(tmp_path, text)
    assert done.returncode == 2 and said.startswith("error: FILE:"), said
    assert said.isprintable() or said[:-1].isprintable(), said
    assert len(said) < 200


TRACE_LINE = '{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}\n'
PROFILE = (ROOT / "profiles/h800.toml").read_text()

BAD = {
    "torn trace": (TRACE_LINE + TRACE_LINE[:50], ["simulate", "trace", "FILE"], r"FILE:2: "),
    "missing constant": (PROFILE.replace("k_half = 543.0", ""), ["plan", "--profile", "FILE"],
                         r"FILE:\d+: gemm\.k_half: missing constant"),
    "unit that does not divide": ("[decode]\nranks = 100\n[prefill]\n", ["simulate", "synthetic", "--fleet", "FILE"],
                                  r"FILE:1: decode\.ranks: 288 expert slots do not divide over 100 ranks"),
    "schedule that does not divide": ("12:00,278,9,28\n", ["simulate", "published-day", "--schedule", "FILE"],
                                      r"FILE:1: nodes: 278 do not divide into 9 units of 18 and 28 of 4"),
    "budget below one unit": ("", ["simulate", "published-day", "--scale", "autoscale", "--budget", "21"],
                              r"--budget: 21 nodes hold no prefill and decode unit"),
    "plan's budget": ("", ["plan", "--nodes-max", "0"], r"--nodes-max: 0 is a budget below one unit"),
    "measurements": ("decode,40,4989\n", ["plan", "--profile-from", "FILE"], r"FILE:1: time_ms: missing"),
    "torn fleet": ("[prefill\n", ["simulate", "synthetic", "--fleet", "FILE"], r"FILE:1: toml: "),
    "bytes for a fleet": (b"\xff\x00", ["simulate", "synthetic", "--fleet", "FILE"], r"FILE:1: toml: "),
    "torn profile": ("[hardware\n", ["plan", "--profile", "FILE"], r"FILE:1: toml: "),
    "number too large": (PROFILE.replace("543.0", "1e400"), ["simulate", "published-day", "--profile", "FILE"],
                         r"FILE:\d+: "),
    "folder for a file": ("", ["simulate", "synthetic", "--fleet", "src"], r"src: is a directory"),
    "profile without room": (PROFILE.replace("hbm_gb = 80", "hbm_gb = 30"), ["simulate", "synthetic", "--profile", "FILE"],
                             r"FILE:\d+: hardware\.hbm_gb: 30 GB leave room for"),
    "folder that cannot be": ("", ["simulate", "published-day", "--out", "FILE"], r"--out: FILE: Not a directory"),
    "plan's folder": ("", ["plan", "--out", "/proc/x"], r"--out: /proc/x: "),
    "no run to compare": ("", ["simulate", "published-day", "--compare", "src"], r"src/summary\.json: cannot be read"),
    "phi": ("", ["simulate", "published-day", "--phi", "-1"], r"--phi: -1 is outside 0\.01\.\.100"),
    "report delay of a replay": ("", ["simulate", "synthetic", "--report-delay", "nan"], r"--report-delay: -?nan is outside"),
    "routers": ("", ["simulate", "synthetic", "--routers", "0"], r"--routers: 0 is outside 1\.\.64"),
    "no tokens": ("", ["simulate", "synthetic", "--input-tokens", "0"], r"--input-tokens: 0 is outside 1\.\."),
    "unit use": ("", ["simulate", "published-day", "--scale", "autoscale", "--unit-use", "nan"],
                 r"--unit-use: -?nan is not above 0 and at most 1"),
    "unit speed": ("", ["simulate", "published-day", "--scale", "autoscale", "--unit-speed", "1000"],
                   r"--unit-speed: 1000 tokens/s per user, a decode unit of one request per rank gives "),
    "option of another scale": ("", ["simulate", "published-day", "--budget", "200"],
                                r"--budget: only with --scale autoscale"),
    "fault after midnight": ("", ["simulate", "published-day", "--fault", "unit-loss@24:00"], r"--fault: \"unit-loss@24:00\": "),
    "fault after the trace": ("", ["simulate", "synthetic", "--seconds", "5", "--fault", "unit-loss@01:00"],
                              r"--fault: \"unit-loss@01:00\": the last request arrives after \d s"),
    "price": ("", ["plan", "--price", "nan"], r"--price: -?nan is outside 0\.\.1000000"),
    "imbalance": ("", ["simulate", "published-day", "--scale", "autoscale", "--kv-imbalance", "0.5"],
                  r"--kv-imbalance: 0\.5 is outside 1\.\.100"),
    "imbalance of a fixed fleet": ("", ["simulate", "published-day", "--requests-imbalance", "1.1"],
                                   r"--requests-imbalance: only with --scale autoscale"),
    "day's lengths": ("", ["simulate", "published-day", "--output-cv2", "0"], r"--output-cv2: 0 is outside 1e-06\.\.100"),
    "unknown policy": ("", ["plan", "--decode", "all"], r"decode policy 'all' is none of "),
    "unit times": ("", ["plan", "--replay", "data/azure_conv_2023.csv", "--unit-start", "-1"],
                   r"--unit-start: -1 is outside 0\.\.86400"),
    "no spread": ("", ["plan", "--kv-imbalance", "0.5"], r"--kv-imbalance: 0\.5 is outside 1\.\.100"),
    "forwards": ("", ["plan", "--ttft-forwards", "nan"], r"--ttft-forwards: -?nan is outside 1\.\.1000"),
    "spares": ("", ["plan", "--spare-units", "101"], r"--spare-units: 101 is outside 0\.\.100"),
    "a name no file can carry": ("", ["plan", "--emit", "toml", "--model", "a\nb/config.json"],
                                 r"--emit: the model's folder has a name that is no printable UTF-8"),
    "a name of no script": ("", ["plan", "--emit", "toml", "--model", "a\udcff/config.json"],
                            r"--emit: the model's folder has a name that is no printable UTF-8"),
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
    "unknown scale": ("", ["simulate", "synthetic", "--scale", "twice"],
                      r"--scale: \"twice\" is none of none, schedule, autoscale"),
    "replay without a schedule": ("", ["simulate", "synthetic", "--scale", "schedule"],
                                  r"--scale: schedule: a replay needs --schedule "),
    "schedule beyond the fleet": ("00:00,12,2,1\n", ["simulate", "synthetic", "--scale", "schedule", "--schedule", "FILE"],
                                  r"--schedule: FILE: 2 decode and 1 prefill units, the fleet has 1 and 1"),
    "budget of a fixed fleet": ("", ["simulate", "synthetic", "--budget", "9"], r"--budget: only with --scale autoscale"),
    "schedule of a fixed fleet": ("", ["simulate", "published-day", "--scale", "none", "--schedule", "FILE"],
                                  r"--schedule: only with --scale schedule or autoscale"),
    "budget of a small fleet": ("", ["simulate", "synthetic", "--scale", "autoscale", "--budget", "3"],
                                r"--budget: 3 nodes hold no prefill and decode unit"),
    "nodes of a fixed fleet": ("", ["simulate", "published-day", "--fault", "no-nodes@22:00"],
                               r"--fault: \"no-nodes@22:00\": only with --scale autoscale"),
    "day's blocks": ("[prefill]\nblocks_per_rank = 400\n[decode]\n", ["simulate", "published-day", "--fleet", "FILE"],
                     r"FILE:2: prefill\.blocks_per_rank: "),
    "day's nodes": ("[decode]\nranks = 12\n[prefill]\n", ["simulate", "published-day", "--fleet", "FILE"],
                    r"FILE:2: decode\.ranks: 12 ranks do not fill nodes of 8 GPUs"),
    "fraction of nothing": ("", ["simulate", "synthetic", "--fraction", "0"], r"--fraction: 0 is outside 0\.002\.\.1"),
    "arrivals": ("", ["simulate", "synthetic", "--arrivals", "weekly"], r"--arrivals: \"weekly\" is none of "),
    "variation of even arrivals": ("", ["simulate", "synthetic", "--arrival-cv2", "3"],
                                   r"--arrival-cv2: only with --arrivals bursty"),
    "variation too small": ("", ["simulate", "synthetic", "--arrivals", "bursty", "--arrival-cv2", "1"],
                            r"--arrival-cv2: 1 is outside 1\.001\.\.1000"),
    "classes of conversations": ("", ["simulate", "synthetic", "--other-hit", "0.1"],
                                 r"--other-hit: only with --hits two-class"),
    "columns without a name": ("2023-11-16 18:15:46.68,5,6,chat\n", ["simulate", "trace", "FILE"],
                               r"FILE:1: column 4: \"chat\" has no name"),
    "torn load": ("\n".join(f"{h},29855" for h in range(24))[:-3], ["plan", "--day-load", "FILE"],
                  r'FILE:24: "23,29" does not end in a line feed: the file may be torn'),
    "load of three": ("12,1,1\n13,1\n", ["simulate", "published-day", "--load", "FILE"], r"FILE:2: column 3: missing"),
    "load with a column too many": ("hour,load\n0,1,2\n", ["plan", "--day-load", "FILE"], r'FILE:2: column 3: "2"'),
    "torn measurements": ("decode,40,4989,45\ndecode,24,4989,4", ["plan", "--profile-from", "FILE"],
                          r'FILE:2: "decode,24,4989,4" does not end in a line feed'),
    "measurements with a column too many": ("decode,40,4989,45,1\n", ["plan", "--profile-from", "FILE"], r'FILE:1: column 5: "1"'),
    "measurements no profile has": ("phase,load,length,time_ms\ndecode,40,4989,1e9\n", ["plan", "--profile-from", "FILE"],
                                    r"FILE:2: time_ms: the measured steps give a residual\.decode_phi of "),
    "schedule with a column too many": ("12:00,278,9,29,1\n", ["simulate", "published-day", "--schedule", "FILE"],
                                        r'FILE:1: column 5: "1"'),
    "plan's budget below its units": ("", ["plan", "--decode-nodes", "18", "--prefill-nodes", "4", "--nodes-max", "21"],
                                      r"--nodes-max: 21 is a budget below one unit: the smallest that hold the model take 22"),
    "plan's budget of one node": ("", ["plan", "--nodes-max", "1"], r"--nodes-max: 1 is a budget below one unit: the smallest "),
    "hits of all": ("", ["plan", "--hit-share", "1"], r"--hit-share: 1 is not at least 0 and below 1"),
    "requests": ("", ["plan", "--requests-per-day", "2e18"], r"--requests-per-day: 2e\+18 is above 1e18"),
    "peak": ("", ["plan", "--peak", "3"], r"--peak: 3 is outside 1\.\.2"),
    "no unit use": ("", ["simulate", "published-day", "--scale", "autoscale", "--unit-use", "0"],
                    r"--unit-use: 0 is not above 0 and at most 1"),
    "line feed in a name": (PROFILE.replace('"H800"', '"H8\\n00"', 1), ["plan", "--profile", "FILE"],
                            r"FILE:\d+: hardware\.name: a control character in a name"),
    "too many blocks": ("[decode]\nunits = 1000\nranks = 288\nblocks_per_rank = 16777216\n[prefill]\n",
                        ["simulate", "synthetic", "--fleet", "FILE"], r"FILE:4: decode\.blocks_per_rank: \d+ KV blocks in all"),
    "trace of one instant": (TRACE_LINE * 3, ["plan", "--trace", "FILE"],
                             r"FILE:3: timestamp: all 3 requests arrive at one instant, which tells no rate"),
    "list for a trace": (f"[{TRACE_LINE}]", ["simulate", "trace", "FILE"], r"FILE:1: object: '\[': a trace is one object per line"),
    "day that no month has": ("2023-02-31 18:15:46,5,6\n", ["simulate", "trace", "FILE"],
                              r'FILE:1: TIMESTAMP: "2023-02-31 18:15:46" is not a time'),
    "trace of centuries": ("1970-01-01 00:00:00,5,6\n9999-01-01 00:00:00,5,6\n", ["simulate", "trace", "FILE"],
                           r"FILE:2: TIMESTAMP: 2932532\.0 days after the first arrival, a replay takes at most 31"),
    "trace of years": (TRACE_LINE + TRACE_LINE.replace("5", "1000000000000", 1),
                       ["simulate", "trace", "FILE", "--scale", "autoscale"],
                       r"FILE:2: timestamp: 11574\.1 days after the first arrival, a replay takes at most 31"),
    "dry run of years": (TRACE_LINE + TRACE_LINE.replace("5", "1000000000000", 1), ["plan", "--replay", "FILE"],
                         r"FILE:2: timestamp: 11574\.1 days"),
    "load slowed down": ("", ["simulate", "synthetic", "--seconds", "3600", "--rate", "0.001"],
                         r"--seconds: 41\.\d days after the first arrival at this --rate"),
    "decisions without end": (TRACE_LINE + TRACE_LINE.replace("5", "2500000000", 1),
                              ["plan", "--replay", "FILE", "--decide-every", "1"],
                              r"--decide-every: 1 s over 28\.9 days are 2500000 decisions, a replay takes at most 500000"),
    "decisions of a replay": (TRACE_LINE + TRACE_LINE.replace("5", "2500000000", 1),
                              ["simulate", "trace", "FILE", "--scale", "autoscale", "--decide-every", "1"],
                              r"--decide-every: 1 s over 28\.9 days are 2500000 decisions"),
    "budget without end": ("", ["simulate", "published-day", "--scale", "autoscale", "--budget", "10000000"],
                           r"--budget: 10000000 is outside 1\.\.16384"),
    "requests without end": ("", ["simulate", "published-day", "--fraction", "0.002", "--requests-per-day", "1e12"],
                             r"--requests-per-day: 2e\+09 requests at --fraction 0\.002, a simulated day holds at most 1e\+09"),
    "tied units of no such fleet": ("[prefill]\nunits = 3\nranks = 32\n[decode]\nunits = 2\nranks = 72\n",
                                    ["simulate", "synthetic", "--fleet", "FILE", "--scale", "autoscale", "--tied"],
                                    r"--tied: one decode unit and five prefill units go together, the fleet has 2 and 3"),
    "seeds that wrap": ("", ["simulate", "synthetic", "--seed", "18446744073709551615", "--seeds", "2"],
                        r"--seeds: 2 from --seed 18446744073709551615 on go beyond 64 bits"),
    "file without end": ("", ["simulate", "trace", "/dev/zero"], r"/dev/zero: is a device, not a file"),
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
    ["plan", "--sensitivities", "--emit", "toml"], ["plan", "--sensitivities", "--replay", "x"],
    ["plan", "--emit", "toml", "--replay", "x"], ["plan", "--emit", "toml", "--out", "x"],
    ["plan", "--trace", "x", "--requests-per-day", "5"], ["plan", "--peak", "2", "--day-load", "x"],
    ["plan", "--replay-rate", "2"], ["simulate", "published-day", "--scale", "autoscale", "--budget", "22.9"],
])
def test_flags_that_contradict_or_wrap_are_one_line_and_exit_2(args):
    done = fathom(*args)
    assert done.returncode == 2 and not done.stdout, done.stdout
    assert len(done.stderr.splitlines()) == 1 and args[-2] in done.stderr, done.stderr


@pytest.mark.parametrize("args", [
    ["plan", "--model"], ["plan", "--profile"], ["plan", "--trace"], ["plan", "--replay"], ["plan", "--day-load"],
    ["plan", "--profile-from"], ["plan", "--out"], ["simulate", "trace"], ["eplb"],
    *(["simulate", load, flag] for load in ("published-day", "synthetic")
      for flag in ("--profile", "--out", "--compare", "--fleet", "--load", "--schedule")),
])
def test_a_name_that_is_empty_is_one_line_and_exit_2(args):
    done = fathom(*args, "")
    assert done.returncode == 2 and not done.stdout, done.stdout
    assert re.fullmatch(rf"fathom: ({args[-1]}|file|FILE): is empty\n", done.stderr), done.stderr


def test_a_configs_errors_name_the_file_itself(tmp_path):
    config = tmp_path / "x.json"
    config.write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
    done = fathom("plan", "--model", config)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {config}: "), done.stderr


def test_a_torn_summary_is_said_to_be_torn(tmp_path):
    (tmp_path / "summary.json").write_text('{\n  "decode_phi": 1,\n  "decode_policy": "fa')
    done = fathom("simulate", "published-day", "--compare", tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/summary.json:3: decode_policy: the text does not end\n", done.stderr


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
    # The same on the terminal, also without a report.
    alone = fathom("simulate", "published-day", "--fraction", "0.002", "--compare", tmp_path / "a")
    assert alone.returncode == 0, alone.stderr
    table = alone.stdout.split(f"Two runs side by side: this run and {tmp_path / 'a'}\n")[1]
    assert table in done.stdout
    assert re.search(r"^seed +1 +7   set differently$", table, re.M), table
    assert re.search(r"^decode_tokens_per_s_per_user +[\d.]+ +[\d.]+   [+-][\d.]+ %$", table, re.M), table
    done = fathom("simulate", "synthetic", "--seconds", "1", "--compare", tmp_path / "a")
    assert done.returncode == 2 and "trace: missing, so not of a replay" in done.stderr, done.stderr


def test_every_load_takes_fraction_scale_and_fleet(tmp_path):
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[prefill]\nunits = 3\nranks = 32\n[decode]\nunits = 2\nranks = 72\n")
    schedule = tmp_path / "schedule.csv"
    schedule.write_text("00:00,30,2,3\n00:01,17,1,2\n")
    synthetic = ["simulate", "synthetic", "--seconds", 150, "--requests-per-s", 20, "--fleet", fleet]

    def figures(*args):
        done = fathom(*args, "--out", tmp_path / "out")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / "out/summary.json").read_text())
    fixed = figures(*synthetic, "--fraction", "0.02")
    assert fixed["nodes_peak"] == 30 and fixed["fraction"] == "0.02" and abs(fixed["bias_requests_percent"]) < 10
    clock = figures(*synthetic, "--scale", "schedule", "--schedule", schedule)
    assert clock["scale_policy"] == "schedule"
    assert abs(clock["node_hours"] - (60 * 30 + 90 * 17) / 3600) < 0.1, clock["node_hours"]
    scaled = figures(*synthetic, "--scale", "autoscale", "--arrivals", "bursty", "--hits", "two-class")
    assert scaled["node_hours"] < 150 * 30 / 3600 and scaled["nodes_peak"] <= 30
    day = ["simulate", "published-day", "--fraction", "0.002", "--fleet", fleet]
    assert figures(*day)["nodes_peak"] == 30
    assert figures(*day, "--scale", "none")["node_hours"] == 30 * 24
    assert figures(*day, "--scale", "autoscale")["nodes_peak"] <= 30


def test_a_replay_shows_what_a_day_does(tmp_path):
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[prefill]\nunits = 3\nranks = 32\n[decode]\nunits = 2\nranks = 72\n")
    load = ["simulate", "synthetic", "--fleet", fleet, "--scale", "autoscale"]

    def run(name, *args):
        done = fathom(*load, *args, "--out", tmp_path / name)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / name / "summary.json").read_text()), (tmp_path / name / "report.html").read_text()
    first, page = run("a", "--seeds", "2", "--seconds", 150)
    day = fathom("simulate", "published-day", "--fraction", "0.002", "--out", tmp_path / "day")
    assert day.returncode == 0, day.stderr
    of_day = json.loads((tmp_path / "day/summary.json").read_text())
    shared = {"nodes_mean", "node_hours", "drain_node_hours", "cost_usd", "theoretical_income_usd", "ttft_s_p90",
              "decode_tokens_per_s_per_user", "kv_tokens_per_output_token", "queue_wait_s_p50", "queue_wait_s_p99",
              "slo_ttft_attainment", "slo_speed_attainment", "goodput_share", "goodput_output_tokens_per_s",
              "exposed_communication_share", "kv_use_share_max", "decode_admission_waits"}
    assert shared <= set(first) and shared <= set(of_day), shared - (set(first) & set(of_day))
    assert page.count("<polyline") > 25 and "One decode layer" in page and "User speed over 2 seeds" in page
    assert "nan" not in page.lower().split("</style>")[1]
    hours = first["node_hours"] / first["nodes_mean"]
    assert abs(first["node_hours_freed"] - (30 * hours - first["node_hours"] - first["drain_node_hours"])) < 1e-6
    rows = list(csv.reader((tmp_path / "a/units.csv").read_text().splitlines()[1:]))
    assert rows[0] == ["from", "nodes", "decode_units", "prefill_units"] and rows[1][0] == "00:00"
    cells = list(csv.DictReader((tmp_path / "a/cells.csv").read_text().splitlines()[1:]))
    assert sum(int(c["arrived_requests"]) for c in cells) == first["requests"]
    # What was set differently is listed, also where only one of the two names it.
    strict, page = run("b", "--seconds", "100", "--burst", "0.5", "--shared", "0.1", "--input-tokens", "900",
                       "--output-tokens", "90", "--requests-per-s", "10", "--slo-ttft", "0.01", "--budget", "25",
                       "--compare", tmp_path / "a")
    assert strict["slo_ttft_attainment"] < first["slo_ttft_attainment"] and strict["goodput_share"] < 0.5
    for name in ("seconds", "requests_per_s", "burst", "shared", "input_tokens_mean", "output_tokens_mean", "slo_ttft_s",
                 "budget_nodes"):
        assert re.search(f"<td>{name}</td>.*<td>set differently</td>", page), name
    # The written schedule is one that a replay takes.
    clock = fathom("simulate", "synthetic", "--seconds", 150, "--fleet", fleet, "--scale", "schedule",
                   "--schedule", tmp_path / "a/units.csv")
    assert clock.returncode == 0, clock.stderr


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
