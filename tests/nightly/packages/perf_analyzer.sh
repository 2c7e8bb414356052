#!/usr/bin/env bash
# Downloads NVIDIA's perf_analyzer into .perf_analyzer/ and prints the command that runs it. It exists only for Linux on x86_64,
# and needs Debian's libb64-0d (tests/nightly/packages/debian.sh) but no GPU.
set -euo pipefail
cd "$(dirname "$0")/../../.."

[ "$(uname -sm)" = "Linux x86_64" ] || { echo "perf_analyzer: its wheel exists only for Linux on x86_64" >&2; exit 1; }
folder=.perf_analyzer
library=$folder/nvidia/cuda_runtime/lib
if ! cmp --quiet tests/nightly/packages/perf_analyzer.txt "$folder/requirements.txt"; then
    # Only these wheels: the program does not need tritonclient's dependencies.
    rm -rf "$folder"
    .uv/bin/uv pip install --quiet --python .venv --target "$folder" --no-deps --require-hashes \
        -r tests/nightly/packages/perf_analyzer.txt
    cp tests/nightly/packages/perf_analyzer.txt "$folder/requirements.txt"
fi
lacking=$(LD_LIBRARY_PATH=$library ldd "$folder/bin/perf_analyzer" | sed -n 's/^\s*\(\S*\) => not found$/\1/p')
[ -z "$lacking" ] || { echo "perf_analyzer: missing $lacking (tests/nightly/packages/debian.sh installs libb64-0d)" >&2; exit 1; }
echo "LD_LIBRARY_PATH=$library $folder/bin/perf_analyzer -m sentence-embedding -u localhost:8000"
