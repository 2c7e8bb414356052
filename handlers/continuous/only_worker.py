"""An adaptive model has one worker: it claims the model as it loads, and does not load if another worker has it.

TorchServe's frontend polls for all workers of a model under one lock, which an idle worker holds until a request comes.
Beside it, a busy one could not deliver its answers. The management API may be asked for any number of workers.
"""

import os
import socket
import time
from pathlib import Path

from handlers.errors import InvalidConfig

# Seconds that the process of a worker that is replaced may take to be gone.
GONE_S = 5.0
# Seconds between two looks whether it is.
POLL_S = 0.1

# Claims of this process, by name, which end with the process.
_claims: dict[str, socket.socket] = {}


def claim_worker(model: str, version: str | None) -> None:
    """Claim to be the only worker of a model, where TorchServe's frontend has started this process.

    Raises:
        InvalidConfig: another worker serves it.
    """
    frontend = os.getppid()
    try:
        is_frontend = Path(f"/proc/{frontend}/comm").read_text().strip() == "java"
    except OSError:
        # No Linux, and so no names that go with their process.
        return
    if is_frontend:
        claim(f"torchserve {frontend} {model} {version}", GONE_S)


def claim(name: str, gone_s: float) -> None:
    """Claim a name among the processes of this machine, as an abstract socket: it is free when its process has ended.

    Raises:
        InvalidConfig: another process has it, and has not ended within `gone_s` seconds.
    """
    if name in _claims:
        return
    deadline_s = time.monotonic() + gone_s
    while True:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The kernel takes 107 bytes.
            held.bind(b"\0" + name.encode()[:107])
        except OSError:
            held.close()
            if time.monotonic() > deadline_s:
                raise InvalidConfig(
                    "another worker serves this model, and adaptive mode has one: scale it to 1; several nodes "
                    "(make serve NODES=4), or scheduling: mode: classic, use more of a machine"
                ) from None
            time.sleep(POLL_S)
        else:
            _claims[name] = held
            return
