#!/usr/bin/env bash
# Installs the Debian packages that tests/nightly needs; without root or apt-get it prints their names:
#   chromium     the gateway's page, in a real browser
#   libb64-0d    perf_analyzer, which tests/nightly/packages/perf_analyzer.sh fetches
#   iproute2     network namespaces, which isolate a node and run containers
#   buildah      builds the image of deploy/nodes/container/Containerfile, without a daemon
#   mmdebstrap   makes the image's base without a registry
#   docker-compose  reads compose.yaml as Docker does, without a daemon
set -euo pipefail

missing=()
for package in chromium libb64-0d iproute2 buildah mmdebstrap docker-compose; do
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
        missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "packages: missing ${missing[*]}; a root with Debian's apt-get can install them" >&2
    exit 1
fi
echo "packages: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
{ apt-get --quiet update && apt-get --quiet install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || {
    echo "packages: missing ${missing[*]}; apt-get reported: $(grep -m 1 '^E: ' "$log" || tail -n 1 "$log")" >&2
    exit 1
}
