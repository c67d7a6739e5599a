#!/usr/bin/env bash
# Builds every fuzz target (x_fuzz.cc) with clang and libFuzzer and runs each for SECONDS (default 60).
# A crash leaves its input under build/fuzz/ and fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
cmake -G Ninja -S . -B build/fuzz -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang-19 \
  -DCMAKE_CXX_COMPILER=clang++-19 -DFATHOM_FUZZ=ON -DFATHOM_SANITIZE=address,undefined >/dev/null
targets=$(ninja -C build/fuzz -t targets all | sed -nE 's/^(fuzz_[a-z0-9_]+): phony$/\1/p' | sort -u)
[ -n "$targets" ] || { echo "no fuzz targets found" >&2; exit 1; }
ninja -C build/fuzz -j2 --quiet $targets
for target in $targets; do
  echo "fuzzing $target for $seconds s"
  mkdir -p "build/fuzz/corpus/$target"
  binary=$(find build/fuzz -name "$target" -type f -perm -u+x | head -1)
  "$binary" "build/fuzz/corpus/$target" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=20 \
    -artifact_prefix="build/fuzz/$target-" -print_final_stats=0 -verbosity=0
done
