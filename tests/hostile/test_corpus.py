"""Odd images, texts and JSON of public bug reports: each is answered as Pillow, fastText and the specifications say.

tests/handlers/vision/test_images.py has other images.
"""

import io
import json
import struct
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any

import fasttext
import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from deploy.archives.sources import source
from deploy.models import model
from tests.hostile.requests import body
from tests.hostile.target import Target
from tests.photographs import path

PHOTOGRAPH = Image.open(path("chelsea")).convert("RGB").resize((40, 36))
PALETTE = PHOTOGRAPH.quantize(64)
XMP = '<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
LITTLE_LONG = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHIII", 1, 0x0112, 4, 1, 6, 0)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Target]:
    return cache(lambda task: Target(task, tmp_path_factory.mktemp(task)))


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    with io.BytesIO() as file:
        image.save(file, form, **options)
        return file.getvalue()


def with_alpha() -> Image.Image:
    image = PHOTOGRAPH.copy()
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


def with_text(keyword: str, text: str, *, is_international: bool) -> bytes:
    texts = PngInfo()
    (texts.add_itxt if is_international else texts.add_text)(keyword, text)
    return saved(PHOTOGRAPH, "PNG", pnginfo=texts)


TURNED = Image.Exif()
TURNED[0x0112] = 6
RAW_PROFILE = f"\nexif\n{len(TURNED.tobytes()):8}\n{TURNED.tobytes().hex()}\n"
FRAMES: dict[str, Any] = {"save_all": True, "append_images": [PHOTOGRAPH.rotate(180)], "duration": 50}
JPEG = saved(PHOTOGRAPH, "JPEG", quality=95)
IMAGES = {
    "grey jpeg": saved(PHOTOGRAPH.convert("L"), "JPEG", quality=95),
    "progressive": saved(PHOTOGRAPH, "JPEG", progressive=True, quality=95),
    "restarts": saved(PHOTOGRAPH, "JPEG", optimize=True, subsampling=0, restart_marker_rows=1),
    "garbage behind": JPEG + bytes(500) + b"SEFH\xff\xda\xff\xd9" + b"x" * 7000,
    "second jpeg behind": JPEG + saved(PHOTOGRAPH.convert("L"), "JPEG"),
    "mpo": saved(PHOTOGRAPH, "MPO", save_all=True, append_images=[PHOTOGRAPH.rotate(180)]),
    "fill bytes": JPEG[:2] + b"\xff\xff\xff" + JPEG[2:],
    "1 bit": saved(PHOTOGRAPH.convert("1"), "PNG"),
    "palette": saved(PALETTE, "PNG"),
    "palette, transparent": saved(PALETTE, "PNG", transparency=bytes(range(0, 256, 4))),
    "rgb, transparent": saved(PHOTOGRAPH, "PNG", transparency=(10, 10, 10)),
    "alpha": saved(with_alpha(), "PNG"),
    "grey and alpha": saved(PHOTOGRAPH.convert("LA"), "PNG"),
    "webp alpha": saved(with_alpha(), "WEBP", lossless=True),
    "webp frames": saved(PHOTOGRAPH, "WEBP", lossless=True, **FRAMES),
    "png frames": saved(PHOTOGRAPH, "PNG", **FRAMES),
    "bmp palette": saved(PALETTE, "BMP"),
    "xmp png": with_text("XML:com.adobe.xmp", XMP, is_international=True),
    "raw profile": with_text("Raw profile type exif", RAW_PROFILE, is_international=False),
    "long exif value": saved(PHOTOGRAPH, "JPEG", exif=LITTLE_LONG, quality=95),
}


@pytest.mark.parametrize("name", IMAGES)
def test_odd_image_is_answered_as_the_one_that_pillow_makes_of_it(target: Callable[[str], Target], name: str) -> None:
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(IMAGES[name])))
    plain = saved((upright.convert("RGBA") if upright.mode == "P" else upright).convert("RGB"), "PNG")
    got, wanted = (
        json.loads(target("image_classification").answer([body(each, "image/*")], decodes=False)[0].body)
        for each in (IMAGES[name], plain)
    )
    assert got.keys() == wanted.keys()
    np.testing.assert_allclose([got[label] for label in wanted], list(wanted.values()), atol=0.02)


TEXTS = {
    "right to left": "שלום עולם، مرحبا بالعالم \u202eabc\u202c",
    "joined emoji": "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "composed": unicodedata.normalize("NFC", "Ångström café 한국은행"),
    "decomposed": unicodedata.normalize("NFD", "Ångström café 한국은행"),
    "byte order mark": "\ufeffBonjour tout le monde",
    "controls": "a\x01b\x7fc",
    "lines": "Bonjour\ttout\nle\r\nmonde",
    "line separators": "Bonjour\u2028tout\u2029le monde\x0b\x0c\x85",
    "end of a sentence": "Hello world </s> Das ist ein deutscher Satz und noch einer",
    "label of fastText": "__label__de Hello my friend, how are you",
    "spaces around": "   hello   ",
    "full width": "ＡＢＣ　１２３",
    "combining": "a" + "\u0301" * 200,
    "no spaces": "a" * 1999,
    "last character": "\U0010ffff",
}


@pytest.mark.parametrize("name", TEXTS)
def test_odd_text_is_answered_as_fasttext_does(target: Callable[[str], Target], name: str) -> None:
    entry = model("language-id")
    network = fasttext.load_model(source(entry, None).location)
    ((label,), (score,)) = network.predict(" ".join(TEXTS[name].split()), k=1)
    for request in (
        body(json.dumps({"text": TEXTS[name]}).encode(), "application/json"),
        body(TEXTS[name].encode(), "text/plain"),
    ):
        (reply,) = target("language_id").answer([request], decodes=False)
        (best, *_) = json.loads(reply.body)
        assert (best["label"], best["score"]) == (label.removeprefix("__label__"), pytest.approx(score, abs=1e-4))


@pytest.mark.parametrize(
    ("document", "status"),
    [
        (b'{"text": "a\\ud800b"}', 400),
        (b'{"text": "a\\u0000b"}', 400),
        ('{"text": "Déjà"}'.encode("latin-1"), 400),
        ('{"text": "hi"}'.encode("utf-16"), 400),
        (b'{"text": "a", "top_k": NaN}', 400),
        (b'{"text": "a", "top_k": 1e999}', 400),
        (b'{"text": "a", "top_k": 99999999999999999999999}', 400),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, 400),
        (b'{"text":"a"} x', 400),
        (b'{"text": ["a","b"]}', 400),
        (b'"Bonjour tout le monde"', 200),
        (b'\xef\xbb\xbf{"text": "Bonjour"}', 200),
        (b'{"instances": ["Bonjour tout le monde", "", null, {"text": "Hello"}, {"txt": "a"}, 5]}', 200),
    ],
)
def test_odd_json_has_its_status_and_a_message(target: Callable[[str], Target], document: bytes, status: int) -> None:
    (reply,) = target("language_id").answer([body(document, "application/json")], decodes=False)
    assert reply.status == status
    assert status == 200 or json.loads(reply.body)["message"]
