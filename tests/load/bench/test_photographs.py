"""The photographs that are sent."""

import io

from PIL import Image

from load.bench.photographs import photographs


def test_photographs_are_eight_different_jpegs_of_720_pixels() -> None:
    bodies = photographs()
    assert len(set(bodies)) == 8
    for body in bodies:
        with Image.open(io.BytesIO(body)) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (720, 720), "RGB")
