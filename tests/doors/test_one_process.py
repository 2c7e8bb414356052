"""One process, by HTTP and by gRPC."""

from collections.abc import Iterator

import pytest

from tests.doors import places
from tests.doors.door import Door, hold
from tests.doors.kinds import Row
from tests.doors.rows import GRPC, HTTP

pytestmark = pytest.mark.builds


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with places.one_process(tmp_path_factory.mktemp("door")) as started:
        yield started


@pytest.mark.parametrize("row", [*HTTP, *GRPC], ids=lambda row: row.name)
def test_door_keeps_the_row(row: Row, door: Door) -> None:
    hold(row, door)
