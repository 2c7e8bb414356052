"""Frames of HTTP/2 by hand: calls of gRPC without a message, or with a part of one."""

import socket
import struct

INFER = b"/inference.GRPCInferenceService/ModelInfer"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_HEADERS, ACK = 4, 1  # flags
FRAME_BYTES, WINDOW_BYTES = 16384, 65535  # of a frame, and that a peer sends before it hears more


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def call(stream: int, path: bytes = INFER) -> bytes:
    """Return the head of a call, without a message."""
    named = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"a"}
    named |= {b"te": b"trailers", b"content-type": b"application/grpc"}
    return frame(HEADERS, END_HEADERS, stream, b"".join(line(*each) for each in named.items()))


def line(name: bytes, value: bytes) -> bytes:
    """Return a header as HPACK writes one without a table."""
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)


def connect(address: tuple[str, int]) -> socket.socket:
    found = socket.create_connection(address, timeout=10)
    found.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
    return found


class Connection:
    """A connection that sends within the peer's windows; `step` reads, and sends what fits."""

    def __init__(self, address: tuple[str, int], streams: int, message: bytes = b"") -> None:
        """Call with so many streams at once, each with a part of a message."""
        self.socket = connect(address)
        self._left = {2 * each + 1: message for each in range(streams)}
        self._windows = dict.fromkeys([0, *self._left], WINDOW_BYTES)
        self._received, self._out = b"", b"".join(map(call, self._left))
        self.socket.setblocking(False)
        self.is_open = True

    def step(self) -> None:
        try:
            piece = self.socket.recv(1 << 16)
            self.is_open = bool(piece)
            self._received += piece
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        self._read_frames()
        for stream, left in self._left.items():
            size = min(len(left), self._windows[0], self._windows[stream], FRAME_BYTES)
            if size > 0 and len(self._out) < 1 << 20:
                self._out += frame(DATA, 0, stream, left[:size])
                self._left[stream] = left[size:]
                self._windows[0] -= size
                self._windows[stream] -= size
        try:
            self._out = self._out[self.socket.send(self._out) :] if self.is_open and self._out else self._out
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False

    def _read_frames(self) -> None:
        while len(self._received) >= 9 and len(self._received) >= (end := 9 + int.from_bytes(self._received[:3])):
            kind, flags, stream = self._received[3], self._received[4], int.from_bytes(self._received[5:9])
            payload, self._received = self._received[9:end], self._received[end:]
            if kind == WINDOW and stream in self._windows:
                self._windows[stream] += int.from_bytes(payload)
            elif kind == SETTINGS and not flags & ACK:
                for number, value in struct.iter_unpack(">HI", payload):
                    if number == 4:  # the window of each stream
                        grown = value - WINDOW_BYTES
                        self._windows |= {each: self._windows[each] + grown for each in self._left}
                self._out += frame(SETTINGS, ACK, 0)
            elif kind == PING and not flags & ACK:
                self._out += frame(PING, ACK, 0, payload)
