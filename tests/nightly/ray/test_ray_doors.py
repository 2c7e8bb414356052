"""Ray Serve, by HTTP and by gRPC."""

from collections.abc import Iterator

import pytest

from tests.doors import places
from tests.doors.door import Door, hold
from tests.doors.rows import GRPC, HTTP, Row
from tests.nightly.ray.cluster import cluster


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    with cluster(folder / "home") as started:
        yield places.ray(started, places.archive(folder))


@pytest.mark.parametrize("row", [*HTTP, *GRPC], ids=lambda row: row.name)
def test_ray_serve_keeps_the_row(row: Row, door: Door) -> None:
    hold(row, door)
