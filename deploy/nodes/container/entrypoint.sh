#!/bin/sh
# The commands of the image; any other command is executed unchanged.
#   node               TorchServe and the node's Envoy, on port 8085        python -m deploy.nodes.container
#   edge [OPTIONS]     the gateway, on ports 8000 to 8004                   python -m deploy.gateway run
#   client ...         torchserve-client
#   archive NAME...    builds archives of examples/models.yaml into /models
set -eu

edge() {
    # Only the gateway's user may read its folder, and a mounted /run/gateway may belong to another user.
    state=/run/gateway/state
    mkdir -p -m 700 "$state"
    # An access log in the mounted folder could fill it: it goes to the container's output, which engines rotate.
    if [ ! -e "$state/access.log" ] && (: >>/proc/1/fd/1) 2>/dev/null; then
        ln -sf /proc/1/fd/1 "$state/access.log"
    fi
    exec python -m deploy.gateway run --config /etc/gateway/gateway.yaml --state-dir "$state" "$@"
}

command=${1:-node}
[ $# -eq 0 ] || shift
case "$command" in
    node) exec python -m deploy.nodes.container ;;
    edge) edge "$@" ;;
    client) exec torchserve-client "$@" ;;
    archive) exec python -m deploy.archives --export-path "${MODEL_STORE:-/models}" "$@" ;;
    *) exec "$command" "$@" ;;
esac
