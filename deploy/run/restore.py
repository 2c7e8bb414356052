"""Registers again what a node served before it died.

    Registration -> its archive is there, and of that version -> registered, scaled, default -> READY

What cannot be had is said in a line, and the rest is served.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from deploy.run.machine import Local
from deploy.run.record import Registration
from deploy.run.waits import Waits
from torchserve_client.archives import describe
from torchserve_client.errors import InvalidPayload, LoadFailed, ManagementError, NotReady
from torchserve_client.management import Management
from torchserve_client.worker_log import WorkerLog, wait_loaded


def restore(local: Local, wanted: Sequence[Registration], waits: Waits) -> list[str]:
    """Have a node serve what it served.

    Args:
        local: a running node; what it serves already stays as it is.
        wanted: what it served.
        waits: says what is waited for.

    Returns:
        A line for each version: that it is back, or why it is not.

    Raises:
        Unreachable: the node does not answer any more.
    """
    management = local.server.management
    logs = [WorkerLog(local.server.logs / "model_log.log", each.model, each.version) for each in wanted]
    problems = [_register(local, each) for each in wanted]
    for each, problem in zip(wanted, problems, strict=True):
        if each.is_default and problem is None and management.describe(each.model)["modelVersion"] != each.version:
            management.set_default(each.model, each.version)

    def line(each: Registration, problem: str | None, log: WorkerLog) -> str:
        name = f"{local.name}: {each.model} {each.version}"
        if problem is None and each.min_workers > 0:
            try:
                with waits.on(f"{name}: waiting for its workers"):
                    wait_loaded(management, each.model, log, each.version)
            except (LoadFailed, NotReady) as error:
                problem = error.message
        if problem is not None:
            return f"{name} is not restored: {problem}"
        return (
            f"{name}: restored, batch_size {each.batch_size}, max_batch_delay {each.max_batch_delay_ms} ms, "
            f"workers {each.min_workers}"
        )

    with ThreadPoolExecutor(max(1, len(wanted))) as pool:
        return list(pool.map(line, wanted, problems, logs))


def _register(local: Local, wanted: Registration) -> str | None:
    """Register one version as it was; returns what is in the way."""
    server, management = local.server, local.server.management
    path = server.directory / server.settings.model_store / wanted.archive
    if not path.exists():
        return f"{wanted.archive} is gone from the model store"
    try:
        version = describe(path).version
    except InvalidPayload as error:
        return error.message
    if version != wanted.version:
        return f"{wanted.archive} holds version {version} now"
    try:
        if not _is_registered(management, wanted):
            management.register(
                wanted.archive,
                batch_size=wanted.batch_size,
                max_batch_delay_ms=wanted.max_batch_delay_ms,
                initial_workers=wanted.min_workers,
                model_name=wanted.model,
                response_timeout_s=wanted.response_timeout_s,
                startup_timeout_s=wanted.startup_timeout_s,
            )
        described = management.describe(wanted.model, wanted.version)
        if (described["minWorkers"], described["maxWorkers"]) != (wanted.min_workers, wanted.max_workers):
            management.scale(wanted.model, wanted.min_workers, wanted.version, most=wanted.max_workers)
    except ManagementError as error:
        if error.status == 0:
            raise
        return error.message
    return None


def _is_registered(management: Management, wanted: Registration) -> bool:
    try:
        return wanted.version in management.versions(wanted.model)
    except ManagementError as error:
        if error.status != 404:
            raise
        return False
