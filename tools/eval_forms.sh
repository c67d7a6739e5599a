#!/usr/bin/env bash
# The built-in model's accuracy in every form that must keep it: as trained, with int8 and FP8 weights, through expert
# parallelism. Fails when a kind is below 99 % in any form, or a form is 0.5 points or more below the first.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mktemp)
trap 'rm -f "$results"' EXIT
for form in "--weights native" "--weights int8" "--weights fp8" "--prefill-ep 4 --decode-ep 8 --redundant-experts 8"; do
  result=$(FATHOM_SERVE_ARGS=$form tools/run_eval.sh --json "$@") || { echo "$form: $result" >&2; exit 1; }
  printf '%s\t%s\n' "$form" "$result" >>"$results"
done
python3 - "$results" <<'PYTHON'
import json
import sys

rows = [line.rstrip("\n").split("\t") for line in open(sys.argv[1])]
shares = []
for form, text in rows:
    result = json.loads(text)
    shares.append(100 * result["right"] / result["asked"])
    worst = min(result["kinds"].items(), key=lambda item: item[1]["right"] / item[1]["asked"])
    print(f"{form:52} {shares[-1]:6.2f} %  {result['right']}/{result['asked']}, least {worst[0]} {worst[1]['right']}/{worst[1]['asked']}")
if min(shares) <= shares[0] - 0.5:
    sys.exit(f"eval_forms: {shares[0] - min(shares):.2f} points lost, 0.5 are too many")
PYTHON
