#!/usr/bin/env bash
# Build archives of examples/models.yaml into model_store/:  ./archive.sh resnet-152   (--help lists the options)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -e "$here/.venv/.installed" ] || make --no-print-directory -C "$here" .venv/.installed
PYTHONPATH="$here" exec "$here/.venv/bin/python" -m deploy.build "$@"
