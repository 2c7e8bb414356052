"""Sends an image from many users with Locust, before and after batching.

    locust -f examples/load/locustfile.py --headless -u 16 -r 16 -t 30s -H http://localhost:8080

Run it with the model registered with batch_size=1, and again with batch_size=8: requests per second and the median show
the effect of batching. MODEL and IMAGE select others. Locust's users are a closed loop, whose numbers omit the requests
that a stalled server delays; `torchserve-batching load run --rate` includes them.
"""

import mimetypes
import os
from pathlib import Path

from locust import FastHttpUser, constant, task

MODEL = os.environ.get("MODEL", "mobilenet-v2")
IMAGE = Path(os.environ.get("IMAGE", Path(__file__).parents[1] / "mobilenet-v2" / "espresso.jpg"))
BODY = IMAGE.read_bytes()
HEADERS = {"Content-Type": mimetypes.guess_type(IMAGE)[0] or "application/octet-stream"}


class Caller(FastHttpUser):
    """A user that sends its next request after a response."""

    wait_time = constant(0)

    @task
    def predict(self) -> None:
        """Classify the image."""
        self.client.post(f"/predictions/{MODEL}", data=BODY, headers=HEADERS, name=MODEL)
