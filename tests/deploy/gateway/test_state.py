"""A fleet's models and readiness, from nodes as they were last polled."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from deploy.gateway.control.protocol import _handler_metadata
from deploy.gateway.state import Fleet, Placement, ServedModel, ServedVersion, choose_spaces
from deploy.protocol.errors import RequestError
from tests.tables import table

READY = Placement(workers=1, ready_workers=1, batch_size=1, max_batch_delay_ms=1, is_default=True)
GONE, LOST = replace(READY, ready_workers=0), replace(READY, ready_workers=0, was_ready=True)


def fleet(*, draining: str = "", **nodes: Placement) -> Fleet:
    version = ServedVersion("1.0", nodes)
    return Fleet(is_up=True, draining=frozenset(draining), registered={"m": ServedModel("m", {"1.0": version}, "1.0")})


@table(
    ({"a": READY, "b": LOST}, {}, True),
    ({"a": READY, "b": LOST, "draining": "b"}, {}, True),
    # Its only worker is on a node that receives no requests.
    ({"a": READY, "b": LOST, "draining": "a"}, {}, False),
    ({"a": LOST}, {}, False),
    # It has never been READY, so nothing has started yet.
    ({"a": GONE}, {}, False),
    ({"a": READY}, {"is_up": False}, False),
    ({"a": READY}, {"unapplied": "why"}, False),
    ({"a": READY}, {"rejected": frozenset({"lds.json"})}, False),
    ({"a": LOST}, {"withdrawn": frozenset({("m", "1.0")})}, True),
    ({"a": LOST}, {"registered": {}}, True),
)
def test_fleet_is_ready_while_each_version_that_was_has_a_node_that_takes_requests(
    nodes: dict[str, Any], more: dict[str, Any], is_ready: bool
) -> None:
    assert replace(fleet(**nodes), **more).is_ready is is_ready


@table((READY, None, {}), (READY, {"a": 1}, {"a": 1}), (GONE, {"a": 1}, {"a": 1}), (GONE, None, None))
def test_version_without_metadata_is_another_projects_or_not_ready(on: Placement, metadata: Any, found: Any) -> None:
    version = ServedVersion("1.0", {"a": on}, metadata)
    with (
        pytest.raises(RequestError, match=r"'m' version 1\.0 is not at ready state") if found is None else nullcontext()
    ):
        assert _handler_metadata(Fleet(), ServedModel("m", {"1.0": version}), version) == found


@table(("1.0", "1.0"), ("1", "1.0"), ("2", "2"), ("2.0", "2"), ("3", None), ("1.1", None), ("4", None))
def test_version_is_found_by_its_name_or_by_tritons_if_that_is_one(asked: str, expected: str | None) -> None:
    versions = {name: ServedVersion(name, {}) for name in ("1.0", "2", "4.0", "4.0.0")}
    assert ServedModel("m", versions).find(asked) == expected


def test_version_that_is_withdrawn_is_neither_served_nor_the_default() -> None:
    versions = {name: ServedVersion(name, {"a": READY}) for name in ("1.0", "2.0")}
    served = Fleet(
        registered={"m": ServedModel("m", versions, "2.0")}, withdrawn=frozenset({("m", "2.0"), ("x", "1.0")})
    )
    assert ([*served.models["m"].versions], served.models["m"].default) == (["1.0"], None)
    assert replace(served, withdrawn=frozenset()).models["m"].default == "2.0"


def test_space_of_a_version_stays_until_no_node_has_it() -> None:
    def choose(wanted: Any, former: Any = (), **spaces: str) -> str:
        version = ServedVersion("1.0", dict.fromkeys("abc", READY), {"vector_space": "x"}, spaces)
        found = choose_spaces({"m": ServedModel("m", {"1.0": version}, "1.0")}, wanted, former)["m"].versions["1.0"]
        assert not found.space or found.metadata == {"vector_space": found.space}
        out = {node for node in "abc" if found.is_left_out(node)}
        assert out == ({node for node in "abc" if spaces.get(node) != found.space} if found.space else set())
        return found.space

    former = [("m", "2.0", "g"), ("m", "1.0", "f"), ("n", "1.0", "h")]
    assert [choose("one"), choose("one", a="f"), choose("one", a="g", b="f", c="f")] == ["", "f", "f"]
    assert choose("one", former, a="g", b="g", c="f") == "f"  # a node that is down still has it
    assert choose("one", former, a="g", b="g") == "g"
    assert [choose({"m": "x"}, former, a="g"), choose({"n": "x"}, former, a="g"), choose(None, former, a="g")] == [
        "x",
        "",
        "",
    ]
