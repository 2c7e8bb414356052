"""Ray Serve, by HTTP and by gRPC."""

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.doors import places
from tests.doors.door import Door, hold, read_answer
from tests.doors.kinds import Row, post
from tests.doors.rows import GRPC, HTTP
from tests.nightly.ray.cluster import cluster
from tests.waiting import until


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    with cluster(folder / "home") as started:
        made = places.ray(started, places.archive(folder))
        until(lambda: is_kept(made), timeout_s=60)
        yield made


def is_kept(door: Door) -> bool:
    """Whether a connection stays: HAProxy ends all of them when it takes the configuration of a new application."""
    with door.connect() as connection, connection.makefile("rb") as file, suppress(OSError):
        for _ in range(5):
            connection.sendall(post(4))
            if read_answer(file)[0] != "200":
                return False
            time.sleep(1)
        return True
    return False


@pytest.mark.parametrize("row", [*HTTP, *GRPC], ids=lambda row: row.name)
def test_ray_serve_keeps_the_row(row: Row, door: Door) -> None:
    hold(row, door)
