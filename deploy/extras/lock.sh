#!/usr/bin/env bash
# Writes deploy/extras/NAME.lock: the packages that the extra NAME of pyproject.toml adds to requirements.lock, in
# compatible versions. Like `make lock`, it keeps compatible versions.
#   deploy/extras/lock.sh ray
set -euo pipefail
cd "$(dirname "$0")/../.."

whole=$(mktemp -d)
trap 'rm -rf "$whole"' EXIT
lock=deploy/extras/$1.lock
if [ -f "$lock" ]; then
    cat requirements.lock "$lock" >"$whole/lock"
fi
.uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra dev --extra "$1" \
    --no-annotate --custom-compile-command "make lock-extras" --constraint requirements.lock -o "$whole/lock" pyproject.toml
python3 deploy/lock.py beyond requirements.lock "$whole/lock" >"$whole/beyond"
mv "$whole/beyond" "$lock"
