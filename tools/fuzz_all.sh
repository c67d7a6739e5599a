#!/usr/bin/env bash
# Builds every fuzz target (x_fuzz.cc) with clang and libFuzzer and runs each for SECONDS (default 60), from the
# seeds in tests/fuzz_seeds. A crash leaves its input under build/fuzz/ and fails the run.
# Usage: fuzz_all.sh [SECONDS [TARGET...]], a target being the file's name without .cc
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
cmake -G Ninja -S . -B build/fuzz -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang-19 \
  -DCMAKE_CXX_COMPILER=clang++-19 -DFATHOM_FUZZ=ON -DFATHOM_SANITIZE=address,undefined >/dev/null
if [ $# -gt 0 ]; then
  targets=$(printf 'fuzz_%s\n' "$@")
else
  targets=$(ninja -C build/fuzz -t targets all | sed -nE 's/^(fuzz_[a-z0-9_]+): phony$/\1/p' | sort -u)
fi
[ -n "$targets" ] || { echo "no fuzz targets found" >&2; exit 1; }
ninja -C build/fuzz -j"${JOBS:-2}" --quiet $targets
for target in $targets; do
  stem=${target#fuzz_}
  corpus=build/fuzz/corpus/$target
  folders=("$corpus")
  mkdir -p "$corpus"
  [ -d "tests/fuzz_seeds/$stem" ] && folders+=("tests/fuzz_seeds/$stem")
  if [ "$stem" = config_fuzz ]; then
    for config in tests/fixtures/*/config.json; do cp "$config" "$corpus/$(basename "$(dirname "$config")")"; done
  fi
  echo "fuzzing $target for $seconds s"
  binary=$(find build/fuzz -name "$target" -type f -perm -u+x | head -1)
  "$binary" "${folders[@]}" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=20 \
    -dict=tests/fuzz_seeds/json.dict -artifact_prefix="build/fuzz/$target-" -print_final_stats=1 -print_funcs=0 -verbosity=0
done
