#!/usr/bin/env bash
# Build archives of examples/models.yaml into model_store/:  ./archive.sh resnet-152   (--help lists the options)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -e "$here/.venv/.installed" ] || make --no-print-directory -C "$here" .venv/.installed
# Threads of PyTorch that spin while they wait take twice the processor time, and up to four times as long beside other load.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"
PYTHONPATH="$here" exec "$here/.venv/bin/python" -m deploy.archives "$@"
