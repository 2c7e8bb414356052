"""JSON documents that are taken apart and put together wrongly, and written as no library would.

tree: None, bool, int, float, str, Raw, list, Object -> mutate -> tree -> written -> bytes
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.values import Draw


# Characters of a document, about: more than an archive of the fuzzer takes.
LONGEST = 2 * 2**20


@dataclass(frozen=True, slots=True)
class Raw:
    """What stands in the document as it is."""

    text: str


class Object(list[tuple[str, Any]]):
    """A JSON object as its pairs, of which two may have one name."""


def document(value: Any) -> Any:
    """Make a tree of Python's values."""
    if isinstance(value, dict):
        return Object((name, document(each)) for name, each in value.items())
    if isinstance(value, Object):
        return Object((name, document(each)) for name, each in value)
    return [document(each) for each in value] if isinstance(value, list) else value


def written(tree: Any, *, is_ascii: bool = False) -> bytes:
    """Write a tree; surrogates that stand alone are escaped, as a client's JSON library may do it.

    What has been repeated within what has been repeated is cut off where it is longer than any body may be.
    """
    pieces, length = [], 0
    for piece in _pieces(tree, is_ascii):
        pieces.append(piece)
        length += len(piece)
        if length > LONGEST:
            break
    return "".join(pieces).encode("utf-8", "surrogatepass")


def _pieces(tree: Any, is_ascii: bool) -> Iterator[str]:
    if isinstance(tree, Raw):
        yield tree.text
    elif isinstance(tree, Object):
        yield "{"
        for index, (name, value) in enumerate(tree):
            yield ("," if index else "") + _string(name, is_ascii) + ":"
            yield from _pieces(value, is_ascii)
        yield "}"
    elif isinstance(tree, list):
        yield "["
        for index, value in enumerate(tree):
            yield "," if index else ""
            yield from _pieces(value, is_ascii)
        yield "]"
    elif isinstance(tree, str):
        yield _string(tree, is_ascii)
    else:
        yield json.dumps(tree)


def _string(text: str, is_ascii: bool) -> str:
    has_surrogate = any("\ud800" <= character <= "\udfff" for character in text)
    return json.dumps(text, ensure_ascii=is_ascii or has_surrogate)


# A place in a tree: its parent, and the index of the child there.
Place = tuple[list[Any], int]


def places(tree: Any) -> list[Place]:
    """Every place in a tree but its root."""
    found: list[Place] = []
    if isinstance(tree, list):
        for index in range(len(tree)):
            found.append((tree, index))
            found += places(_at((tree, index)))
    return found


def _at(place: Place) -> Any:
    parent, index = place
    return parent[index][1] if isinstance(parent, Object) else parent[index]


def _put(place: Place, value: Any) -> None:
    parent, index = place
    parent[index] = (parent[index][0], value) if isinstance(parent, Object) else value


def mutate(tree: Any, draw: "Draw", odd_value: Callable[[], Any], odd_name: Callable[[], str]) -> tuple[Any, str]:
    """Change one thing in a tree, in place where that can be; return the tree and what was done."""
    there = places(tree)
    if not there or draw.often(0.04):
        return draw.one((odd_value(), "another root"), ([tree], "root in a list"), (Object(), "an empty root"))
    place = draw.choice(there)
    parent, index = place
    change = draw.choice(CHANGES)
    if change == "replace":
        _put(place, odd_value())
    elif change == "remove":
        del parent[index]
    elif change == "twice":
        parent.insert(index, parent[index])
    elif change == "rename":
        if not isinstance(parent, Object):
            return mutate(tree, draw, odd_value, odd_name)
        parent[index] = (odd_name(), parent[index][1])
    elif change == "add":
        parent.append((odd_name(), odd_value()) if isinstance(parent, Object) else odd_value())
    elif change == "wrap":
        _put(place, draw.one([_at(place)], Object([(odd_name(), _at(place))])))
    elif change == "swap":
        other = draw.choice(there)
        one, two = _at(place), _at(other)
        # One may lie within the other: what is written then is cut where it would not end.
        if not _holds(one, two) and not _holds(two, one):
            _put(place, two)
            _put(other, one)
    elif change == "many":
        times = draw.one(2, 7, 8, 9, 64, 65, 300)
        parent[index:index] = [parent[index]] * times
    elif change == "as text":
        _put(place, written(_at(place)).decode("utf-8", "surrogatepass"))
    return tree, change


def _holds(outer: Any, inner: Any) -> bool:
    return outer is inner or any(_at(place) is inner for place in places(outer))


CHANGES = (
    *("replace", "replace", "replace", "replace", "remove", "twice", "rename", "rename", "add", "add", "wrap", "swap"),
    *("many", "as text"),
)
