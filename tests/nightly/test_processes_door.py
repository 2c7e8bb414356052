"""Several processes behind one port keep the rows of one process."""

from collections.abc import Iterator

import pytest

from tests.doors import places
from tests.doors.door import Door, hold
from tests.doors.kinds import Row
from tests.doors.rows import GRPC, HTTP


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with places.one_process(tmp_path_factory.mktemp("door"), "--processes", "2") as started:
        yield started


@pytest.mark.parametrize("row", [*HTTP, *GRPC], ids=lambda row: row.name)
def test_door_keeps_the_row(row: Row, door: Door) -> None:
    hold(row, door)
