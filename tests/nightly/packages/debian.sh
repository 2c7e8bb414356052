#!/usr/bin/env bash
# Installs what tests/nightly needs of Debian, and says what is missing where it cannot:
#   chromium     the gateway's page, in a real browser
#   libb64-0d    perf_analyzer, which tests/nightly/packages/perf_analyzer.sh fetches
#   iproute2     network namespaces, in which a node is cut off, and in which containers run
#   buildah      builds the image of deploy/container/Containerfile, without a daemon
#   mmdebstrap   makes the base that the image is built on, where no registry is asked
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
    echo "packages: missing ${missing[*]}; apt-get said: $(grep -m 1 '^E: ' "$log" || tail -n 1 "$log")" >&2
    exit 1
}
