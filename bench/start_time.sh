#!/usr/bin/env bash
# How long `make serve` takes to its "ready" line once everything is built: each of ROUNDS starts and their median.
# Ends with 1 when the median is above LIMIT_S seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-5}
limit_s=${LIMIT_S:-3}
make --no-print-directory build
times=$(mktemp)
trap 'rm -f "$times"' EXIT

for round in $(seq "$rounds"); do
  begin=$(date +%s%N)
  # Port 0: any free one. The server replaces the shell of its recipe; the process group ends both.
  coproc SERVE { exec setsid make --no-print-directory serve PORT=0 2>&1; }
  log=()
  ready=
  while IFS= read -r line <&"${SERVE[0]}"; do
    log+=("$line")
    case $line in "ready on "*) ready=$(date +%s%N); break ;; esac
  done
  if [ -z "$ready" ]; then
    printf '%s\n' "the server did not start:" "${log[@]}" >&2
    exit 2
  fi
  kill -TERM -- "-$SERVE_PID"
  wait "$SERVE_PID" 2>/dev/null || true
  awk -v ns=$((ready - begin)) 'BEGIN { printf "%.2f\n", ns / 1e9 }' | tee -a "$times" | sed "s/^/start $round: /; s/$/ s/"
done
median=$(sort -n "$times" | sed -n "$(((rounds + 1) / 2))p")
echo "median of $rounds: $median s (limit $limit_s s)"
awk -v median="$median" -v limit="$limit_s" 'BEGIN { exit !(median <= limit) }'
