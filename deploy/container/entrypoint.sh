#!/bin/sh
# The commands of the image; whatever is none of them is run as it stands.
#   node [OPTIONS]     TorchServe and the node's Envoy, on port 8085        python -m deploy.container node
#   edge [OPTIONS]     the gateway, on ports 8000 to 8004                   python -m deploy.gateway run
#   client ...         torchserve-client
#   archive NAME...    builds archives of examples/models.yaml into /models
set -eu

edge() {
    # The gateway's folder is for its user alone, and whoever mounts /run/gateway owns that: it takes one below.
    state=/run/gateway/state
    mkdir -p -m 700 "$state"
    # A line for each request would fill what is mounted there: it goes to the container's output, which engines rotate.
    if [ ! -e "$state/access.log" ] && (: >>/proc/1/fd/1) 2>/dev/null; then
        ln -sf /proc/1/fd/1 "$state/access.log"
    fi
    exec python -m deploy.gateway run --config /etc/gateway/gateway.yaml --run "$state" "$@"
}

command=${1:-node}
[ $# -eq 0 ] || shift
case "$command" in
    node | drain) exec python -m deploy.container "$command" "$@" ;;
    edge) edge "$@" ;;
    client) exec torchserve-client "$@" ;;
    archive) exec python -m deploy.build --export-path "${MODEL_STORE:-/models}" "$@" ;;
    *) exec "$command" "$@" ;;
esac
