#!/usr/bin/env bash
# Fetches what deploy/kubernetes' custom objects are held against, into .tools/:
#   .tools/kubernetes   KEDA's and Prometheus-operator's types, and TypeScript, from npm by its lock
#   .tools/kserve       KServe's own models, as PyPI has them: the wheel alone, nothing of it is run
# It needs node and npm (Debian's packages, or another), and says so where kubectl is missing or too old: PyPI, npm and
# Debian have none that renders deploy/kubernetes.
set -euo pipefail
cd "$(dirname "$0")/.."
here=tests/deploy/kubernetes

kubectl version --client 2>/dev/null | grep -q '^Kustomize Version: v5\.' ||
    echo "kubernetes: no kubectl of 1.27 or newer: deploy/kubernetes will not be rendered, nor tested" >&2
command -v npm >/dev/null || { echo "kubernetes: missing npm" >&2; exit 1; }

folder=.tools/kubernetes
if ! cmp --quiet "$here/npm/package-lock.json" "$folder/installed.json"; then
    rm -rf "$folder"
    mkdir -p "$folder"
    cp "$here/npm/package.json" "$here/npm/package-lock.json" "$folder"
    npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel error >/dev/null
    cp "$here/npm/package-lock.json" "$folder/installed.json"
fi

folder=.tools/kserve
if ! cmp --quiet "$here/kserve.txt" "$folder/requirements.txt"; then
    rm -rf "$folder"
    .uv/bin/uv pip install --quiet --python .venv --target "$folder" --no-deps --require-hashes -r "$here/kserve.txt"
    cp "$here/kserve.txt" "$folder/requirements.txt"
fi
