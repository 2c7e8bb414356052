#!/usr/bin/env bash
# Builds .extras/NAME: what .venv has, and what the extra NAME of pyproject.toml adds to it. Where .venv was built before,
# only the latter is fetched: uv links the rest from its cache.
#   deploy/extras/environment.sh ray        TORCH_INDEX and PYTHON as with deploy/environment.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

lock=deploy/extras/${1:?"which extra? one of: $(basename -s .lock deploy/extras/*.lock | xargs)"}.lock
[ -f "$lock" ] || { echo "environment: no extra $1: $lock is not there" >&2; exit 1; }
mkdir -p .extras
cat requirements.lock "$lock" >".extras/$1.lock"
deploy/environment.sh ".extras/$1.lock" ".extras/$1"
