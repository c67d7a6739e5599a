"""fathom simulate from outside: seeds, policies and their bound, the bias of a fraction, price, the autoscaler's flags,
and that docs/simulator.md names what the files hold."""
import csv
import json
import re
import subprocess

import pytest

from conftest import BINARY, ROOT, SLOWER

TINY = ["simulate", "published-day", "--fraction", "0.002"]
SMALL_FLEET = "[prefill]\nunits = 3\nranks = 32\n[decode]\nunits = 2\nranks = 72\n"


def fathom(*args):
    return subprocess.run([str(BINARY), *map(str, args)], cwd=ROOT, capture_output=True, text=True,
                          timeout=120 * SLOWER)


def run(out, *args):
    done = fathom(*args, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "summary.json").read_text()), (out / "report.html").read_text()


def rows(path):
    """Of a CSV file, after its line of the profile."""
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# profile "), lines[0]
    return list(csv.DictReader(lines[1:]))


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """A sliver of the published day over two seeds, under every policy."""
    out = tmp_path_factory.mktemp("policies")
    return out, *run(out, *TINY, "--seeds", 2, "--all-policies")


def test_seeds_are_spread(policies):
    _, summary, page = policies
    for name in ("decode_tokens_per_s_per_user", "kv_tokens_per_output_token", "ttft_s_p99", "node_hours"):
        assert f"{name}_seed_mean" in summary and f"{name}_seed_spread" in summary
    assert summary["node_hours_seed_mean"] == 5442 and summary["node_hours_seed_spread"] == 0
    spread = summary["decode_tokens_per_s_per_user_seed_spread"]
    assert 0 < spread < 2
    mean = summary["decode_tokens_per_s_per_user_seed_mean"]
    assert abs(summary["decode_tokens_per_s_per_user"] - mean) <= spread
    assert "User speed over 2 seeds" in page


def test_policies_stand_beside_their_bound_with_the_gain(policies):
    out, summary, page = policies
    table = {row["policy"]: row for row in rows(out / "policies.csv")}
    assert list(table) == ["random", "round-robin", "least-requests", "p2c-kv", "kv-capped", "fathom", "perfect-balance"]
    bound = float(table["perfect-balance"]["decode_tokens_per_s_per_user"])
    base = float(table["kv-capped"]["decode_tokens_per_s_per_user"])
    for name, row in table.items():
        speed, gain = float(row["decode_tokens_per_s_per_user"]), float(row["decode_speed_gain_percent"])
        assert float(row["decode_tokens_per_s_per_user_least"]) <= speed <= float(row["decode_tokens_per_s_per_user_most"])
        assert speed <= bound, name
        assert abs(gain - 100 * (speed / base - 1)) < 1e-6
        assert summary[f"decode_speed_gain_percent_{name.replace('-', '_')}"] == gain
    # The policy asked for is the run itself, over both seeds.
    assert abs(base - summary["decode_tokens_per_s_per_user_seed_mean"]) < 1e-9
    assert "<td>perfect-balance</td>" in page and "gain over kv-capped" in page


def test_a_fraction_prints_its_bias(policies):
    _, summary, _ = policies
    # Almost all of so small a part is the ramp from an empty fleet: users are faster than over the day.
    assert summary["bias_decode_tokens_per_s_per_user_percent"] > 1
    assert -30 < summary["bias_kv_tokens_per_output_token_percent"] < 0
    assert abs(summary["bias_requests_percent"]) < 2


def test_a_part_of_each_hour_runs_its_schedule(tmp_path):
    """Of three hours the first twentieth each: units are those of the clock, and the whole schedule is what nodes are
    biased against."""
    (tmp_path / "fleet.toml").write_text(SMALL_FLEET)
    (tmp_path / "schedule.csv").write_text("00:00,30,2,3\n01:00,13,1,1\n02:00,17,1,2\n02:01,30,2,3\n")
    load = ["simulate", "synthetic", "--seconds", 10800, "--requests-per-s", 0.5, "--fleet", tmp_path / "fleet.toml",
            "--fraction", 0.05]
    clock, _ = run(tmp_path / "a", *load, "--scale", "schedule", "--schedule", tmp_path / "schedule.csv")
    assert [(r["from"], r["nodes"]) for r in rows(tmp_path / "a/units.csv")] == [
        ("00:00", "30"), ("01:00", "13"), ("02:00", "17"), ("02:01", "30")]
    here, whole = (30 + 13 + (17 + 2 * 30) / 3) / 3, (30 + 13 + (17 + 59 * 30) / 60) / 3
    assert abs(clock["bias_nodes_percent"] - 100 * (here / whole - 1)) < 0.5
    assert clock["bias_input_tokens_percent"] < -10  # conversations grow over the hours
    assert clock["bias_not_estimated"].startswith("speed")
    plain = fathom(*load)
    assert re.search(r"^bias_not_estimated +speed, waits, hits and balance of the whole trace$", plain.stdout, re.M)
    assert re.search(r"^bias_nodes_percent +0\.000$", plain.stdout, re.M), plain.stdout


def test_beside_faults_the_missing_bias_is_named():
    done = fathom(*TINY, "--fault", "unit-loss@13:00,for=3")
    assert done.returncode == 0, done.stderr
    assert "not estimated beside faults" in done.stdout and "bias_decode_tokens" not in done.stdout


def test_the_price_reaches_every_output(tmp_path):
    day, _ = run(tmp_path / "day", *TINY, "--price", 3)
    assert day["cost_usd"] == 87072 * 1.5 and day["price_usd_per_gpu_hour"] == "3"
    load = ["simulate", "synthetic", "--seconds", 5, "--requests-per-s", 5]
    usual, _ = run(tmp_path / "two", *load)
    dear, _ = run(tmp_path / "three", *load, "--price", 3)
    assert usual["price_usd_per_gpu_hour"] == "2" and dear["price_usd_per_gpu_hour"] == "3"
    assert abs(dear["cost_usd"] / usual["cost_usd"] - 1.5) < 1e-9
    plan, _ = run(tmp_path / "plan", "plan", "--day-load", "data/day_load.csv", "--price", 3)
    assert plan["price_usd_per_gpu_hour"] == "3"
    replay = ["plan", "--replay", "data/mooncake_conversation.jsonl"]
    costs = [float(re.search(r"^cost (\d+) USD at [\d.]+ USD per GPU hour", fathom(*replay, "--price", usd).stdout,
                             re.M).group(1)) for usd in (2, 4)]
    assert abs(costs[1] - 2 * costs[0]) <= 1
    for command in (TINY, load):
        done = fathom(*command, "--price", "-1")
        assert done.returncode == 2 and done.stderr == "error: --price: -1 is outside 0..1000000\n"


def test_the_marks_follow_what_ran(tmp_path):
    def published(name, *args):
        _, page = run(tmp_path / name, *TINY, *args)
        found = re.search(r"Published against simulated.*?</table>", page, re.S)
        return set(re.findall(r"<td>(\w+)</td>", found.group(0))) if found else set()
    of_load = {"theoretical_income_usd", "input_tokens", "output_tokens", "hit_share"}
    day = published("day")
    assert {"nodes_mean", "cost_usd", "decode_tokens_per_s_per_user"} | of_load <= day and "fit" in day
    scaled = published("scaled", "--scale", "autoscale")
    assert of_load <= scaled and not {"nodes_mean", "cost_usd", "decode_tokens_per_s_per_user", "fit"} & scaled
    assert not published("load", "--requests-per-day", "1e7")
    assert "decode_tokens_per_s_per_user" not in published("policy", "--decode", "random")


def test_the_autoscaler_is_what_its_flags_say(tmp_path):
    (tmp_path / "fleet.toml").write_text(SMALL_FLEET)
    load = ["simulate", "synthetic", "--seconds", 20, "--fleet", tmp_path / "fleet.toml", "--scale", "autoscale"]
    usual, _ = run(tmp_path / "a", *load)
    roomy, _ = run(tmp_path / "b", *load, "--headroom", 0.6, "--hysteresis", 0.1, "--decide-every", 5, "--unit-start", 9)
    assert {"headroom": "0.6", "hysteresis": "0.1", "interval_s": "5", "unit_start_s": "9"}.items() <= roomy.items()
    assert not {"headroom", "hysteresis", "interval_s", "unit_start_s"} & set(usual)

    def dry_run(*more):
        done = fathom("plan", "--day-load", "data/day_load.csv", "--replay", "data/azure_conv_2023.csv", "--replay-rate", 400,
                      *more)
        assert done.returncode == 0, done.stderr
        return (int(re.search(r"^(\d+) decisions", done.stdout, re.M).group(1)),
                float(re.search(r"; ([\d.]+) node-hours", done.stdout).group(1)))
    decisions, node_hours = dry_run()
    assert dry_run("--decide-every", 30)[0] in (2 * decisions, 2 * decisions - 1)
    assert dry_run("--headroom", 0.5)[1] > 1.3 * node_hours


@pytest.mark.parametrize("flag, value, said", [
    ("--headroom", "0.95", r"--headroom: 0\.95 is outside 0\.\.0\.9"),
    ("--hysteresis", "nan", r"--hysteresis: -?nan is outside 0\.\.0\.9"),
    ("--hysteresis", "0.89 --headroom 0.3", r"--hysteresis: 0\.89 beside a headroom of 0\.3 leaves a unit no capacity"),
    ("--minimum-stay", "-1", r"--minimum-stay: -1 is outside 0\.\.86400"),
    ("--catch-up", "0", r"--catch-up: 0 is outside 1\.\.86400"),
    ("--decide-every", "0", r"--decide-every: 0 is outside 1\.\.3600"),
    ("--look-ahead", "inf", r"--look-ahead: inf is outside 0\.\.86400"),
    ("--trend-window", "0", r"--trend-window: 0 is outside 1\.\.86400"),
    ("--start-timeout", "0", r"--start-timeout: 0 is outside 1\.\.86400"),
    ("--backoff", "0", r"--backoff: 0 is outside 1\.\.86400"),
    ("--backoff-max", "5", r"--backoff-max: 5 is below the first one, 600"),
])
def test_bad_values_of_the_autoscalers_flags_are_one_line_and_exit_2(flag, value, said):
    for command in (["simulate", "published-day", "--scale", "autoscale"], ["simulate", "synthetic", "--scale", "autoscale"],
                    ["plan", "--replay", "data/azure_conv_2023.csv"]):
        done = fathom(*command, flag, *value.split())
        assert done.returncode == 2 and not done.stdout, done.stdout
        assert re.fullmatch(f"error: {said}\n", done.stderr), done.stderr
    alone = fathom("simulate", "published-day", flag, value.split()[0])
    assert alone.returncode == 2 and f"{flag}: only with --scale autoscale" in alone.stderr, alone.stderr


def test_a_dry_run_has_a_queue_and_starts_with_what_the_trace_needs():
    done = fathom("plan", "--day-load", "data/day_load.csv", "--replay", "data/azure_conv_2023.csv", "--replay-rate", 400)
    decode, prefill = map(int, re.search(r"^starts with (\d+) decode and (\d+) prefill units", done.stdout, re.M).groups())
    assert decode > 1 and prefill > 1, done.stdout
    for kind in ("decode", "prefill"):
        assert re.search(rf"^longest {kind} queue \d+ s of the serving units' work, \d+ tokens left at the end$",
                         done.stdout, re.M), done.stdout


def test_a_dry_run_says_once_that_an_objective_is_out_of_reach(tmp_path):
    """Prompts of the trace are longer than any idle unit computes in time."""
    trace = tmp_path / "long.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                     + "".join(f"2023-11-16 18:{s // 60:02}:{s % 60:02}.0,120000,100\n" for s in range(600)))
    def lines(ttft):
        done = fathom("plan", "--requests-per-day", "5e6", "--replay", trace, "--hit-share", "0.1", "--ttft", ttft)
        assert done.returncode == 0, done.stderr
        return re.findall(r"^(\S+)  decode .*prefill \d+ -> \d+ \(slo unreachable,", done.stdout, re.M)
    assert lines("4") == ["00:01:00"]
    assert lines("600") == []


def test_the_store_is_read_and_takes_its_time(tmp_path):
    (tmp_path / "fleet.toml").write_text(SMALL_FLEET.replace("ranks = 32", "ranks = 32\nblocks_per_rank = 60"))
    load = ["simulate", "synthetic", "--seconds", 60, "--requests-per-s", 20, "--fleet", tmp_path / "fleet.toml",
            "--input-tokens", "600", "--output-tokens", "30", "--shared", "0.8"]
    memory, _ = run(tmp_path / "a", *load)
    disk, _ = run(tmp_path / "b", *load, "--kv-store-tb", 1)
    assert disk["hit_share"] > memory["hit_share"] and disk["hit_share"] <= disk["hit_share_bound"]
    assert 0 < disk["store_hit_share"] <= disk["hit_share"] and disk["store_read_ms_p50"] >= 1
    assert disk["kv_store_tb"] == "1" and "store_hit_share" not in memory


def test_tied_units_of_a_day_start_in_groups(tmp_path):
    fleet = tmp_path / "fleet.toml"
    tied = [*TINY, "--fleet", fleet, "--scale", "autoscale", "--tied", "--budget", 200]
    fleet.write_text(SMALL_FLEET.replace("units = 3", "units = 8"))
    run(tmp_path / "out", *tied)
    units = [(int(row["decode_units"]), int(row["prefill_units"])) for row in rows(tmp_path / "out/units.csv")]
    assert units and all((decode, prefill) in ((1, 5), (2, 8)) for decode, prefill in units), units
    fleet.write_text(SMALL_FLEET)
    done = fathom(*tied)
    assert done.returncode == 2 and "five prefill units go together, the fleet has 2 and 3" in done.stderr, done.stderr


def test_an_autoscaled_day_has_the_units_of_its_fleet(tmp_path):
    (tmp_path / "fleet.toml").write_text(SMALL_FLEET)
    run(tmp_path / "out", *TINY, "--fleet", tmp_path / "fleet.toml", "--scale", "autoscale", "--budget", 200)
    units = [(int(row["decode_units"]), int(row["prefill_units"])) for row in rows(tmp_path / "out/units.csv")]
    assert units and all(decode <= 2 and prefill <= 3 for decode, prefill in units), units


def test_requests_that_arrive_at_once_have_no_cost(tmp_path):
    (tmp_path / "trace.csv").write_text("2023-11-16 18:15:46,1000,5\n")
    summary, page = run(tmp_path / "out", "simulate", "trace", tmp_path / "trace.csv", "--seeds", 2)
    for name in ("nodes_mean", "node_hours", "cost_usd", "cost_usd_per_million_output_tokens", "node_hours_seed_spread"):
        assert summary[name] is None, name
    assert summary["theoretical_income_usd"] > 0
    done = fathom("simulate", "trace", tmp_path / "trace.csv", "--compare", tmp_path / "out")
    assert re.search(r"^cost_usd +-$", done.stdout, re.M) and "nan" not in done.stdout, done.stdout


def test_a_prompt_that_no_rank_can_hold_is_refused_at_once(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("2023-11-16 18:15:46,10000000,5\n2023-11-16 18:15:50,1000,5\n")
    summary, page = run(tmp_path / "out", "simulate", "trace", trace)
    assert (summary["refused_requests"], summary["finished_requests"], summary["expired_requests"]) == (1, 1, 0)
    assert summary["input_tokens"] == 1000 and summary["slo_ttft_attainment"] == 0.5
    trace.write_text("2023-11-16 18:15:46,10000000,5\n")
    summary, page = run(tmp_path / "alone", "simulate", "trace", trace)
    assert summary["theoretical_income_usd"] == 0 and summary["slo_speed_attainment"] is None


def test_a_trace_begins_with_its_first_request(tmp_path):
    line = '{"timestamp": %d, "input_length": 600, "output_length": 3}\n'
    figures = []
    for first in (0, 1700000000000):
        (tmp_path / "trace.jsonl").write_text("".join(line % (first + ms) for ms in (0, 60000)))
        figures.append(run(tmp_path / "out", "simulate", "trace", tmp_path / "trace.jsonl")[0])
    assert figures[0] == figures[1] and 0 < figures[0]["node_hours"] < 1


def test_an_unknown_subcommand_is_named():
    done = fathom("simulate", "foo")
    assert done.returncode == 2
    assert done.stderr == "fathom: simulate: foo: no such subcommand, there are: published-day, trace, synthetic\n"
    done = fathom("simulate")
    assert done.stderr == "fathom: simulate: a subcommand is required: published-day, trace, synthetic\n"
    assert fathom("foo").stderr.startswith("fathom: foo: no such subcommand, there are: chat, serve, ")


def test_a_csv_without_its_last_line_feed_is_said(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:47.68,374,4")
    done = fathom("simulate", "trace", trace)
    assert done.returncode == 0
    assert done.stderr.startswith(f"note: {trace}:3: GeneratedTokens: the file ends without a line feed: 4 may be cut "
                                  "short"), done.stderr
    trace.write_text(trace.read_text() + "\n")
    assert "note:" not in fathom("simulate", "trace", trace).stderr


def documented(title):
    """First columns of the table below a bold title in docs/simulator.md."""
    text = (ROOT / "docs/simulator.md").read_text().split("## Output files")[1]
    table = text.split(f"**{title}**")[1].split("\n\n")[1]
    return re.findall(r"^\| `(\w+)` \|", table, re.M)


def test_every_csv_column_is_documented_and_exists(policies, tmp_path):
    (tmp_path / "fleet.toml").write_text(SMALL_FLEET)
    run(tmp_path / "replay", "simulate", "synthetic", "--seconds", 20, "--fleet", tmp_path / "fleet.toml", "--scale",
        "autoscale", "--all-policies")
    day, replay = policies[0], tmp_path / "replay"
    assert {p.name for p in day.iterdir()} == {"report.html", "summary.json", "hours.csv", "units.csv", "policies.csv"}
    assert {p.name for p in replay.iterdir()} == {"report.html", "summary.json", "cells.csv", "units.csv", "policies.csv"}
    for title, path in {"`hours.csv`": day / "hours.csv", "`units.csv`": day / "units.csv",
                        "`policies.csv` of the published day": day / "policies.csv", "`cells.csv`": replay / "cells.csv",
                        "`policies.csv` of replays": replay / "policies.csv"}.items():
        assert path.read_text().splitlines()[1].split(",") == documented(title), title
    assert (day / "units.csv").read_text().splitlines()[1] == (replay / "units.csv").read_text().splitlines()[1]


def test_every_field_of_eplb_is_documented_and_exists(tmp_path):
    case = {"weight": [3, 1, 2, 2], "num_replicas": 6, "num_groups": 1, "num_nodes": 1, "num_gpus": 2}
    (tmp_path / "cases.json").write_text(json.dumps([case]))
    done = fathom("eplb", tmp_path / "cases.json", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)[0]) == documented("`fathom eplb --json`")
