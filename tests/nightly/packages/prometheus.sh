#!/usr/bin/env bash
# Unpacks Debian's prometheus and promtool into .tools/prometheus/: installing the package would start a service.
set -euo pipefail
cd "$(dirname "$0")/../../.."

folder=.tools/prometheus
[ ! -x "$folder/usr/bin/promtool" ] || exit 0
command -v apt-get >/dev/null || { echo "prometheus: Debian's apt-get is needed to fetch it" >&2; exit 1; }
downloaded=$(mktemp -d)
trap 'rm -rf "$downloaded"' EXIT
echo "prometheus: fetching Debian's package"
# Where root runs it, apt's own user fetches the file.
chmod 777 "$downloaded"
fetch() { (cd "$downloaded" && apt-get --quiet=2 download prometheus); }
# Lists of packages grow old, and then name files that are gone.
fetch 2>/dev/null || { apt-get --quiet=2 update && fetch; } || {
    echo "prometheus: apt-get download prometheus failed" >&2
    exit 1
}
rm -rf "$folder" && mkdir -p "$folder"
dpkg -x "$downloaded"/prometheus_*.deb "$folder"
