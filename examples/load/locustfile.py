"""Sends the same image from many users with Locust, before and after batching.

    locust -f examples/load/locustfile.py --headless -u 16 -r 16 -t 30s -H http://localhost:8080

Register the model with batch_size=1, run it, register it anew with batch_size=8 and run it again: requests per second
and the median show the effect of batching. MODEL and IMAGE name others. Locust's users are a closed loop: its
numbers omit the requests that a stalled server delays; `python -m load run --rate` has them.
"""

import mimetypes
import os
from pathlib import Path

from locust import FastHttpUser, constant, task

MODEL = os.environ.get("MODEL", "resnet-152")
IMAGE = Path(os.environ.get("IMAGE", Path(__file__).parents[1] / "resnet-152" / "cat.jpg"))
BODY = IMAGE.read_bytes()
HEADERS = {"Content-Type": mimetypes.guess_type(IMAGE)[0] or "application/octet-stream"}


class Caller(FastHttpUser):
    """Sends its next request when its answer has come."""

    wait_time = constant(0)

    @task
    def predict(self) -> None:
        """Classify the image."""
        self.client.post(f"/predictions/{MODEL}", data=BODY, headers=HEADERS, name=MODEL)
