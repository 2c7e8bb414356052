#!/usr/bin/env bash
# Builds .extras/NAME: the packages of .venv, and those of the extra NAME of pyproject.toml; or, for serve, only its own.
# If .venv exists, uv links its packages from a cache.
#   deploy/extras/environment.sh ray        TORCH_INDEX and PYTHON as with deploy/environment.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

lock=deploy/extras/${1:?"which extra? one of: $(basename -s .lock deploy/extras/*.lock | xargs)"}.lock
[ -f "$lock" ] || { echo "environment: unknown extra $1: $lock does not exist" >&2; exit 1; }
mkdir -p .extras
[ "$1" = serve ] || set -- "$1" requirements.lock
cat "${@:2}" "$lock" >".extras/$1.lock"
deploy/environment.sh ".extras/$1.lock" ".extras/$1"
