"""Through how many modules a request goes, counted with sys.setprofile."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from deploy.models import ROOT
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from tests.handlers.batching.frontend import Frontend
from tests.handlers.serving import serve, started_adaptive
from tests.handlers.tasks import test_image_classification
from tests.photographs import photograph

pytestmark = pytest.mark.builds

HANDLERS = str(ROOT / "handlers") + "/"
# The packages on a request's path: these call each other back and forth. A task's hooks are in several modules.
STATIONS = ("batching", "continuous", "pipeline")
TASK = ("base.py", "pipeline/task.py", "tasks/", "text/", "vision/")


class Entries:
    """The modules that were entered, and how many frames of stations entered each of the others."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._visits: set[tuple[int, str]] = set()
        self._frames: list[FrameType] = []

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        module = self._module(frame)
        if event != "call" or not module:
            return
        caller = frame.f_back
        while caller is not None and not self._module(caller):
            caller = caller.f_back
        self.modules.add(module)
        there = self._station(module)
        if caller is not None and there == module and self._station(self._module(caller)) != self._module(caller):
            self._visits.add((id(caller), module))
            # A frame that ends would leave its number to another.
            self._frames.append(caller)

    def most_visits(self) -> int:
        return max(Counter(module for _, module in self._visits).values())

    @staticmethod
    def _module(frame: FrameType) -> str:
        name = frame.f_code.co_filename
        return name.removeprefix(HANDLERS) if name.startswith(HANDLERS) else ""

    @staticmethod
    def _station(module: str) -> str:
        if module.startswith(TASK):
            return "task"
        first = module.partition("/")[0]
        return first if first in STATIONS else module


@contextmanager
def entered() -> Iterator[Callable[[], Entries]]:
    """Profile this thread and those that start inside; what is returned begins to count."""
    counting: list[Entries] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        for each in counting:
            each.note(frame, event, argument)

    def begin() -> Entries:
        counting.append(Entries())
        return counting[-1]

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield begin
    finally:
        counting.clear()
        sys.setprofile(None)
        threading.setprofile(None)


def test_image_in_classic_mode_goes_through_thirteen_modules(tmp_path: Path) -> None:
    archive = test_image_classification.archived(tmp_path, "openvino")
    handler = test_image_classification.classifier(archive, engine="openvino")
    sent = ([photograph("chelsea")], [{"Host": "localhost", "Content-Type": "image/jpeg"}])
    # A first read is cached.
    serve(handler, *sent)
    with entered() as begin:
        entries = begin()
        (answer,) = serve(handler, *sent)
    assert answer.status == 200
    assert {"base.py", "pipeline/flow.py", "protocol/rows.py", "engines/openvino.py"} <= entries.modules
    assert len(entries.modules) <= 13, sorted(entries.modules)
    assert entries.most_visits() <= 2


@pytest.mark.parametrize("target_ms", [None, 60_000])
def test_text_in_adaptive_mode_goes_through_twenty_modules(
    tiny_archive: Callable[..., Path], target_ms: int | None
) -> None:
    with entered() as begin:
        scheduling = {"mode": "adaptive", "latency_target_ms": target_ms}
        settings = {"precision": "fp32", "threads": 1, "scheduling": scheduling}
        handler = started_adaptive(SentenceEmbeddingHandler(), tiny_archive("bert", "sentence_embedding"), settings)
        handler.reporter.stop()
        with Frontend(handler) as frontend:
            sent = {"Host": "localhost", "Content_Type": "application/json"}
            assert frontend.send(b'{"text": "Anna Berg kept the inn."}', **sent).status == 200
            entries = begin()
            assert frontend.send(b'{"text": "Anna Berg kept the inn."}', **sent).status == 200
            modules, visits = {*entries.modules}, entries.most_visits()
    assert {"continuous/exchanges.py", "batching/core.py", "protocol/rows.py", "text/handler.py"} <= modules
    assert len(modules) <= 20, sorted(modules)
    assert visits <= 2
