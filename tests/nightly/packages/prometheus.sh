#!/usr/bin/env bash
# Unpacks Debian's prometheus and promtool into .tools/prometheus/: installing the package would start a service.
set -euo pipefail
cd "$(dirname "$0")/../../.."

folder=.tools/prometheus
[ ! -x "$folder/usr/bin/promtool" ] || exit 0
command -v apt-get >/dev/null || { echo "prometheus: Debian's apt-get is required" >&2; exit 1; }
downloaded=$(mktemp -d)
trap 'rm -rf "$downloaded"' EXIT
echo "prometheus: downloading Debian's package"
# If root runs this script, apt's own user downloads the file.
chmod 777 "$downloaded"
fetch() { (cd "$downloaded" && apt-get --quiet=2 download prometheus); }
# An old list of packages may name files that no longer exist.
fetch 2>/dev/null || { apt-get --quiet=2 update && fetch; } || {
    echo "prometheus: apt-get download prometheus failed" >&2
    exit 1
}
rm -rf "$folder" && mkdir -p "$folder"
dpkg -x "$downloaded"/prometheus_*.deb "$folder"
