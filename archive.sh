#!/usr/bin/env bash
# torchserve-batching archive, which needs no activated environment:  ./archive.sh resnet-152
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -e "$here/.venv/.installed" ] || make --no-print-directory -C "$here" .venv/.installed
PYTHONPATH="$here" exec "$here/.venv/bin/python" -m deploy.archives "$@"
