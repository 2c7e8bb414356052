"""A server on a real socket, in a thread of its own, for programs that bring their own client."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# (path, content type, body) -> a value that is answered as JSON
Answer = Callable[[str, str, bytes], Any]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve until the end of the block; yields the address.

    Args:
        answer: to a request of any path; a GET has no body.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer a request without a body."""
            self._answer(b"")

        def do_POST(self) -> None:
            """Answer a request with one."""
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def do_PUT(self) -> None:
            """Answer as POST."""
            self.do_POST()

        def _answer(self, content: bytes) -> None:
            body = json.dumps(answer(self.path, self.headers.get("Content-Type", ""), content)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
