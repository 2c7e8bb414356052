#!/usr/bin/env bash
# Classifies a photograph, sends an option, then a list, with curl.     examples/client/curl.sh [URL]
set -euo pipefail
cd "$(dirname "$0")/../.."
url="${1:-http://127.0.0.1:8080}/predictions/mobilenet-v2"

curl -fsS -T examples/mobilenet-v2/espresso.jpg "$url"
echo
curl -fsS -F data=@examples/mobilenet-v2/espresso.jpg -F top_k=1 "$url"
echo
{
    printf '{"instances": [{"b64": "%s"}, ' "$(base64 < examples/mobilenet-v2/espresso.jpg | tr -d '\n')"
    printf '{"b64": "%s"}], "top_k": 1}' "$(base64 < examples/resnet-152/cat.jpg | tr -d '\n')"
} | curl -fsS -H "Content-Type: application/json" -d @- "$url"
echo
