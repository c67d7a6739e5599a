#!/usr/bin/env bash
# Installs what a stage needs and this machine lacks: setup.sh build | test | slow
#   build  compilers and libraries of the release binary, and curl for the line that the server prints
#   test   what `make test` needs beside them: test libraries, a Python environment with the openai client, and
#          the published DeepSeek-V3 tokenizer files
#   slow   clang with libFuzzer for `make test-slow`
# Nothing is fetched that is already there; a stamp under build/ makes the next call instant.
set -euo pipefail
cd "$(dirname "$0")/.."
stage=${1:-build}
mkdir -p build
stamp="build/.setup-$stage-$(cat tools/setup.sh tests/requirements.txt | cksum | cut -d' ' -f1)"
[ -e "$stamp" ] && exit 0

build_packages=(build-essential cmake ninja-build ccache mold pkg-config ca-certificates
  libboost1.81-dev libssl-dev libfmt-dev libspdlog-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  prometheus-cpp-dev zlib1g-dev libcurl4-openssl-dev libnuma-dev libxxhash-dev curl)
test_packages=(libgtest-dev librapidcheck-dev libbenchmark-dev libsimde-dev python3-venv npm)
slow_packages=(clang-19 libclang-rt-19-dev)

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

install_missing() {
  local missing=()
  for package in "$@"; do
    # npm may come from elsewhere; what is on PATH is good enough.
    if [ "$package" = npm ] && command -v npm >/dev/null; then continue; fi
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  echo "setup: installing ${missing[*]}" >&2
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# The bridge needs Rust 1.85: Debian 12's plain rustc is 1.63, its rustc-web is new enough.
rust_is_new_enough() {
  command -v cargo >/dev/null || return 1
  local version
  version=$(rustc --version 2>/dev/null | sed -E 's/rustc ([0-9]+)\.([0-9]+).*/\1 \2/') || return 1
  set -- $version
  [ "${1:-0}" -gt 1 ] || { [ "${1:-0}" = 1 ] && [ "${2:-0}" -ge 85 ]; }
}

case $stage in
  build)
    install_missing "${build_packages[@]}"
    rust_is_new_enough || install_missing rustc-web cargo-web
    ;;
  test)
    "$0" build
    install_missing "${test_packages[@]}"
    if [ ! -x build/venv/bin/python ]; then python3 -m venv build/venv; fi
    build/venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
    if [ -x tools/fetch_test_tokenizer.sh ]; then tools/fetch_test_tokenizer.sh; fi
    ;;
  slow)
    "$0" test
    install_missing "${slow_packages[@]}"
    ;;
  *)
    echo "setup: unknown stage '$stage' (build, test or slow)" >&2
    exit 2
    ;;
esac
rm -f build/.setup-"$stage"-*
touch "$stamp"
