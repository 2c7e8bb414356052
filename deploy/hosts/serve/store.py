"""A folder of archives: each is loaded at its first request, and unloaded if others need its memory.

a request -> find -> use: the loaded replica, or one load for all that wait -> its answer
memory short before or after a load -> the idle model that was used least recently ends
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.hosts.frontend.http import Rejected
from deploy.hosts.serve.stored import (
    AT_REQUEST,
    LOADING,
    READY,
    UNAVAILABLE,
    UNLOADED,
    UNLOADING,
    NotLoaded,
    Stored,
    label_of,
    line,
    resident,
    size,
    trim,
    written_ns,
)
from deploy.protocol.errors import RequestError, unknown_model
from deploy.protocol.rejections import NOT_READY
from handlers.protocol.statuses import UNIMPLEMENTED

SCAN_S = 1.0  # least seconds between two readings of the folder
AGAIN_S = 30.0  # seconds until a model that did not load is tried again, unless its archive changes
GIB = 1 << 30


class Store:
    """The models of a folder, for one event loop."""

    def __init__(
        self,
        folder: Path,
        load: Callable[[Path, list[Path]], Any],
        *,
        most_bytes: int | None,
        load_s: float,
        may_manage: bool,
    ) -> None:
        """`load` makes the replica of an archive beside loaded ones; requests wait for a load for `load_s` at most."""
        self._folder, self._load, self._most_bytes, self._load_s = folder, load, most_bytes, load_s
        self._may_manage = may_manage  # whether clients may load and unload models
        self.on_load: Callable[[Any], object] = lambda _: None  #: called with each new replica
        self._models: dict[str, Stored] = {}
        self._versions = set[Path]()  # archives NAME-VERSION.mar, to one of which NAME.mar leads
        self._scanned_s = float("-inf")
        self._turn = asyncio.Lock()  # one load or unload at a time
        self._scan()

    def __iter__(self) -> Iterator[Stored]:
        self._scan()
        return iter([*self._models.values()])

    def find(self, name: str) -> Stored | None:
        if name not in self._models:
            self._scan()
        return self._models.get(name)

    def _scan(self) -> None:
        """Take new archives in, and let those that are gone go, unless they are loaded."""
        if time.monotonic() < self._scanned_s + SCAN_S:
            return
        self._scanned_s = time.monotonic()
        found = {path.stem: path for path in sorted(self._folder.glob("*.mar")) if path not in self._versions}
        for name, path in found.items():
            if name not in self._models:
                named, version = label_of(path)
                if name == f"{named}-{version}":
                    self._versions.add(path)
                else:
                    self._models[name] = Stored(name, path, version)
        for name in [name for name, each in self._models.items() if name not in found and each.state == UNAVAILABLE]:
            del self._models[name]

    async def ready(self, model: Stored) -> Any:
        """Return a model's replica, loaded in time, or Rejected."""
        try:
            async with asyncio.timeout(self._load_s):
                while model.replica is None or model.is_out:
                    await self._loaded(model)
                return model.replica
        except TimeoutError:
            words = f"{model.name} is loading; wait, or try again."
            raise Rejected(NOT_READY.saying(words)) from None
        except NotLoaded as error:
            raise Rejected(NOT_READY.saying(str(error), **{"Retry-After": f"{AGAIN_S:.0f}"})) from None

    async def _loaded(self, model: Stored) -> None:
        """Wait for the model's load, which goes on if its clients leave."""
        if model.is_out:
            raise NotLoaded(f"{model.name} is unloaded")
        if model.failed is not None:
            failed_s, failed_ns = model.failed
            if time.monotonic() < failed_s + AGAIN_S and failed_ns == written_ns(model.archive):
                raise NotLoaded(model.reason)
        if model.loading is None:
            model.loading = asyncio.create_task(self._load_one(model))
            model.loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # all clients may leave
        await asyncio.shield(model.loading)

    async def _load_one(self, model: Stored) -> None:
        try:
            async with self._turn:
                model.state, model.reason, model.failed = LOADING, "", None
                model.written_ns = written_ns(model.archive)
                before = await self._make_room(model.bytes or size(model.archive))
                loaded = [each.archive for each in self._models.values() if each.replica is not None]
                pool = ThreadPoolExecutor(1, "load")  # its own: one that never ends takes none from others
                loading = asyncio.get_running_loop().run_in_executor(pool, self._load, model.archive, loaded)
                pool.shutdown(wait=False)
                await asyncio.wait({loading}, timeout=self._load_s)  # then others may load beside it
            replica = await loading
            async with self._turn:
                model.bytes = max(0, resident() - before)
                await self._make_room(0)
                if fault := self._find_fault(model, replica, before):
                    await self._end(replica)
                    raise NotLoaded(fault)
                self.on_load(replica)
                model.replica, model.state, model.used_s = replica, READY, time.monotonic()
                model.version = str(replica.version or "")
        except Exception as error:
            model.state, model.failed = UNAVAILABLE, (time.monotonic(), written_ns(model.archive))
            model.reason = f"{model.name} does not load: {line(error)}"
            raise NotLoaded(model.reason) from None
        finally:
            model.loading = None

    def _find_fault(self, model: Stored, replica: Any, before: int) -> str:
        """Return why a model that is loaded cannot stay; "" if it can."""
        if replica.name != model.name:
            return f"{model.archive.name} has the model {replica.name}: name it {replica.name}.mar"
        if self._most_bytes is not None and resident() > self._most_bytes:
            needed = f"it needs {model.bytes / GIB:.2g} GiB beside {before / GIB:.2g} GiB"
            return f"{needed}; --most-memory is {self._most_bytes / GIB:.2g} GiB"
        return ""

    async def _make_room(self, needed: int) -> int:
        """Unload idle models until there is room; return the bytes that the process has."""
        while self._most_bytes is not None and (held := resident()) + needed > self._most_bytes:
            idle = [each for each in self._models.values() if each.state == READY and not each.running]
            if not idle:
                return held
            await self._unload_one(min(idle, key=lambda each: each.used_s), AT_REQUEST)
        return resident()

    async def _unload_one(self, model: Stored, reason: str) -> None:
        model.state, replica, model.replica = UNLOADING, model.replica, None
        await self._end(replica)
        model.state, model.reason = UNAVAILABLE, reason

    async def _end(self, replica: Any) -> None:
        await replica.close()
        replica.unload()
        del replica
        await asyncio.to_thread(trim)

    async def manage(self, action: str, name: str, parameters: Mapping[str, Any]) -> None:
        """Load or unload a model for a client; RequestError as Triton's."""
        if not self._may_manage:
            words = f"{action}: clients may not load or unload models; management: true of --config allows it"
            raise RequestError(400, words, UNIMPLEMENTED)
        if set(parameters) - {"unload_dependents"}:
            words = "parameters of loading are not supported: the archive contains the settings"
            raise RequestError(400, words, UNIMPLEMENTED)
        if (model := self.find(name)) is None:
            raise unknown_model(name)
        try:
            async with asyncio.timeout(self._load_s if action == "load" else None):
                await (self._load_again(model) if action == "load" else self._unload(model))
        except TimeoutError:
            raise RequestError(503, f"'{name}' is still loading") from None
        except NotLoaded as error:
            raise RequestError(400, f"failed to load '{name}': {error}") from None

    async def _load_again(self, model: Stored) -> None:
        if model.replica is not None and model.written_ns != written_ns(model.archive):
            await self._unload(model)
        model.is_out, model.failed = False, None
        if model.replica is None:
            await self._loaded(model)

    async def _unload(self, model: Stored) -> None:
        """Unload a model when its requests have ended; it stays out until a client loads it."""
        model.is_out, model.reason = True, UNLOADED
        if model.loading is not None:
            with suppress(NotLoaded):
                await asyncio.shield(model.loading)
        while model.replica is not None:
            if model.running:
                await model.idle.wait()
            async with self._turn:
                if model.replica is not None and not model.running:
                    await self._unload_one(model, UNLOADED)

    def index(self, *, is_ready: bool = False) -> list[dict[str, str]]:
        """Return Triton's index of the repository."""
        rows = []
        for each in self:
            row = {"name": each.name, "version": each.version, "state": each.state, "reason": each.reason}
            if each.state == READY or not is_ready:
                rows.append({name: value for name, value in row.items() if value})
        return rows

    async def close(self) -> None:
        await asyncio.gather(*(each.replica.close() for each in self._models.values() if each.replica is not None))


class Use:
    """A model while a request needs it: it stays loaded."""

    def __init__(self, store: Store, model: Stored) -> None:
        self._store, self._model = store, model

    @property
    def is_unloaded(self) -> bool:
        return self._model.replica is None

    async def __aenter__(self) -> Any:
        self._model.running += 1
        self._model.idle.clear()
        try:
            return await self._store.ready(self._model)
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._model.running -= 1
        self._model.used_s = time.monotonic()
        if not self._model.running:
            self._model.idle.set()


Predict = Callable[[str, Mapping[str, str], bytes, str], Awaitable[Any]]


class Predictions(Mapping[str, Predict]):
    """The models of a store as `deploy.hosts.frontend.routes.Models` calls them."""

    def __init__(self, store: Store, predict: Callable[[Stored], Predict]) -> None:
        self._store, self._predict = store, predict

    def __getitem__(self, name: str) -> Predict:
        if (model := self._store.find(name)) is None:
            raise KeyError(name)
        return self._predict(model)

    def __iter__(self) -> Iterator[str]:
        return (each.name for each in self._store)

    def __len__(self) -> int:
        return sum(1 for _ in self._store)
