"""An HTTP server on a real socket, in a thread."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# (path, content type, body) -> the value of the JSON response
Answer = Callable[[str, str, bytes], Any]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve until the end of the block and yield the address; a GET has an empty body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.dumps(answer(self.path, self.headers.get("Content-Type", ""), content)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

        do_POST = do_PUT = do_GET  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
