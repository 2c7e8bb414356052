#!/usr/bin/env bash
# Writes deploy/extras/NAME.lock: the packages that the extra NAME of pyproject.toml adds to requirements.lock, in
# compatible versions; or the part of requirements.lock that the package itself needs. Like `make lock`, it keeps
# compatible versions.
#   deploy/extras/lock.sh ray
set -euo pipefail
cd "$(dirname "$0")/../.."

whole=$(mktemp -d)
trap 'rm -rf "$whole"' EXIT
lock=deploy/extras/$1.lock
if [ -f "$lock" ]; then
    cat requirements.lock "$lock" >"$whole/lock"
fi
how=beyond sources=(--extra all --extra dev --extra "$1" pyproject.toml)
[ "$1" != serve ] || how=within sources=(--group pyproject.toml:client pyproject.toml)
.uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
    --custom-compile-command "make lock-extras" --constraint requirements.lock -o "$whole/lock" "${sources[@]}"
python3 deploy/lock.py "$how" requirements.lock "$whole/lock" >"$whole/$how"
mv "$whole/$how" "$lock"
