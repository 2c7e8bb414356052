"""Equal items, which run once, and their results, which a cache keeps. Pure, but for the cache's lock.

payload, before a task decodes it -> key_of -> its key: equal keys have equal bytes or texts, and equal options
result, as it is written          -> Cache.put -> Cache.get: a copy for each request

A key is cheap until another one is like it: a large value is compared by some bytes first, and by its digest then.
"""

import hashlib
import logging
import marshal
import pickle
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from handlers.errors import reason
from handlers.protocol.requests import Cost, Payload

logger = logging.getLogger(__name__)

LARGE_BYTES = 16 * 1024  # bytes or characters of a value from which a key does not contain it
SAMPLE_BYTES = 64  # at the start, in the middle and at the end of a large value
ENTRY_BYTES = 1024  # of the cache's own objects for a result, at most
FORMAT = 2  # marshal's, in which equal values have equal bytes: later ones depend on references


class Large:
    """A large value. It keeps one that cannot change until it is compared; of another one only its digest."""

    __slots__ = ("_digest", "_hash", "_value")

    def __init__(self, value: Any, *, is_kept: bool) -> None:
        """`value`: a text, or an object with the bytes from its first to its last."""
        middle, size = len(value) // 2, SAMPLE_BYTES
        parts = (value[:size], value[middle : middle + size], value[-size:])
        self._hash = hash((len(value), *(each if isinstance(each, str) else bytes(each) for each in parts)))
        self._value, self._digest = value, b""
        if not is_kept:
            self.digest()

    def digest(self) -> bytes:
        if not self._digest:
            value, self._value = self._value, None
            self._digest = hashlib.sha256(
                value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            ).digest()
        return self._digest

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Large) and self._hash == other._hash and self.digest() == other.digest()


def key_of(payload: Payload, *, is_kept: bool = True) -> Hashable:
    """Return the key of a payload; None if it contains objects of which equality is unknown.

    `is_kept`: whether the key may keep large values that cannot change, so that it costs nothing while no other is like
    it.
    """
    options = payload.options
    try:
        if options and not isinstance(options, Mapping):
            return None
        return _exact(payload.value, is_kept), marshal.dumps(options, FORMAT) if options else b""
    except (TypeError, ValueError):
        return None


def _exact(value: Any, is_kept: bool) -> Hashable:
    if isinstance(value, str | bytes):
        return value if len(value) < LARGE_BYTES else Large(value, is_kept=is_kept)
    if isinstance(value, bytearray):
        return bytes(value) if len(value) < LARGE_BYTES else Large(value, is_kept=False)
    if isinstance(value, Mapping):
        return tuple([(name, _exact(each, is_kept)) for name, each in value.items()])
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        if value.nbytes < LARGE_BYTES:
            return value.dtype, value.shape, value.tobytes()
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        return value.dtype, value.shape, Large(flat, is_kept=is_kept and not value.flags.writeable)
    given = value.tolist() if isinstance(value, np.ndarray) else value
    data = marshal.dumps(given, FORMAT)
    return data if len(data) < LARGE_BYTES else Large(data, is_kept=False)


def _size(key: Any) -> int:
    """Return the bytes of a key's texts and bytes; others are part of ENTRY_BYTES."""
    if isinstance(key, tuple):
        return sum(map(_size, key))
    return sys.getsizeof(key)


class Cache:
    """Results of one model in one process, least recently used first, as bytes that no request can change."""

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes, self._bytes, self._lock = most_bytes, 0, threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[bytes, Cost, int]] = OrderedDict()
        self._has_warned = False

    def get(self, key: Hashable) -> tuple[Any, Cost] | None:
        """Return the result and the cost of an item that has equal ones; None without one."""
        with self._lock:
            if (found := self._kept.get(key)) is None:
                return None
            self._kept.move_to_end(key)
        return pickle.loads(found[0]), found[1]  # noqa: S301 - of this process

    def put(self, key: Hashable, result: object, cost: Cost) -> None:
        try:
            data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("cache_mib: results of this task cannot be kept: %s", reason(error))
            return
        # The group of a cost contains options, which the key does, too.
        size = len(data) + 2 * _size(key) + ENTRY_BYTES
        if size > self._most_bytes:
            return
        with self._lock:
            if key not in self._kept:
                self._kept[key] = data, cost, size
                self._bytes += size
            while self._bytes > self._most_bytes:
                _, (_, _, freed) = self._kept.popitem(last=False)
                self._bytes -= freed
