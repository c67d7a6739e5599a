#!/usr/bin/env bash
# Serves the built-in model with the release binary on a free port and prints its accuracy on the held-out questions.
# Arguments go to eval_demo.py; FATHOM_SERVE_ARGS goes to the server, e.g. FATHOM_SERVE_ARGS="--weights int8" make eval
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
# shellcheck disable=SC2086  # the variable holds several arguments
"${FATHOM_BINARY:-build/release/fathom}" serve --port 0 ${FATHOM_SERVE_ARGS:-} >"$log" 2>&1 &
server=$!
trap 'kill -TERM $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 600); do
  url=$(sed -nE 's/.*ready on (http:[^ ]+[0-9]).*/\1/p' "$log" | head -n 1)
  [ -n "$url" ] && break
  kill -0 $server 2>/dev/null || { cat "$log" >&2; exit 2; }
  sleep 0.1
done
[ -n "$url" ] || { echo "run_eval: the server is not ready after a minute" >&2; exit 2; }
python3 tools/eval_demo.py --url "$url" "$@"
