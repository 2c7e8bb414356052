"""One process, by HTTP and by gRPC."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.serve.conftest import number_archive
from tests.doors.door import Door, play
from tests.doors.rows import GRPC, HTTP, Row
from tests.hosts import is_ready, start
from tests.waiting import until

pytestmark = pytest.mark.builds

INFER = 'def infer(x):\n    return {"y": x * 2}\n'
# A quarter of the default, so that the rows are small.
LIMITS = {"memory_bytes": 64 << 20}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder: Path = tmp_path_factory.mktemp("door")
    (config := folder / "limits.yaml").write_text(yaml.safe_dump(LIMITS))
    host = start(number_archive("double", INFER, folder), "--config", config)
    try:
        until(lambda: is_ready(host))
        address = host.url.removeprefix("http://")
        yield Door("one process", address, "/predictions/double", host.process.pid, host.grpc)
    finally:
        host.end()


@pytest.mark.parametrize("row", [*HTTP, *GRPC], ids=lambda row: row.name)
def test_door_keeps_the_row(row: Row, door: Door) -> None:
    if door.name in row.lacks:
        pytest.skip(row.lacks[door.name])
    play(row, door)
