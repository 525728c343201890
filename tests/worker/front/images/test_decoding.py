"""Files become pictures, or a word on why not, before anything large is decoded."""

import io
import random
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from dormouse_worker.pictures.decoding import FORMATS, BadPicture, PictureLimits, decode
from tests.worker.front.images.kit import encoded, picture

LIMITS = PictureLimits(max_pixels=10_000)


def seen(file):
    return decode(file, LIMITS)


def png(width, height, *chunks):
    """Return a PNG whose header says so, whatever is in it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunk(*one) for one in chunks) + chunk(b"IEND", b"")


BOMBS = {
    "a bomb of pixels": (png(50_000, 50_000), "it is 50000 × 50000 pixels; allowed: 10000 together"),
    "the widest": (png(2**31 - 1, 2**31 - 1), "2147483647 × 2147483647"),
    "a bomb of text": (png(8, 8, (b"zTXt", b"a\0\0" + zlib.compress(bytes(100 << 20)))), "cannot be decoded"),
    "no rows": (png(9, 0), "cannot be decoded|0 pixels"),
    "no columns": (png(0, 9), "cannot be decoded|0 × 9"),
    "no pixels in it": (png(8, 8), "cannot be decoded"),
    "cut off": (encoded(picture(60, 60))[:-300], "cannot be decoded"),
    "a cut JPEG": (encoded(picture(60, 60), "JPEG")[:300], "cannot be decoded"),
    "nothing": (b"", "cannot be decoded"),
    "text": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "allowed are PNG, JPEG, WEBP, GIF, BMP"),
    "TIFF": (encoded(picture(9, 9), "TIFF"), "cannot be decoded"),
    "PDF": (encoded(picture(9, 9), "PDF"), "cannot be decoded"),
    "an animation": (
        encoded(picture(9, 9), "GIF", save_all=True, append_images=[picture(9, 9, 1), picture(9, 9, 2)]),
        "it is animated; allowed: one picture",
    ),
    "an animated PNG": (
        encoded(picture(9, 9), "PNG", save_all=True, append_images=[picture(9, 9, 1)]),
        "it is animated",
    ),
    "an animated WebP": (
        encoded(picture(9, 9), "WEBP", save_all=True, append_images=[picture(9, 9, 1)]),
        "it is animated",
    ),
}


@pytest.mark.parametrize(("file", "words"), BOMBS.values(), ids=BOMBS)
def test_what_cannot_be_seen_is_named(file, words):
    with pytest.raises(BadPicture, match=words):
        seen(file)


@pytest.mark.parametrize("kind", FORMATS)
def test_pictures_of_each_format_are_seen(kind):
    image = seen(encoded(picture(40, 30), kind))
    assert (image.mode, image.size) == ("RGB", (40, 30))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_whatever_colours_there_are_become_red_green_and_blue(mode):
    kind = {"CMYK": "JPEG", "YCbCr": "JPEG"}.get(mode, "PNG")
    image = seen(encoded(picture(8, 8, mode="L").convert(mode) if mode == "LA" else picture(8, 8, mode=mode), kind))
    assert (image.mode, image.size) == ("RGB", (8, 8))


def test_one_pixel_is_a_picture():
    assert seen(encoded(Image.new("RGB", (1, 1), (1, 2, 3)))).getpixel((0, 0)) == (1, 2, 3)


def test_a_picture_is_turned_as_its_exif_says():
    exif = Image.Exif()
    exif[0x0112] = 6  # seen from the right
    image = Image.new("RGB", (8, 4), (255, 0, 0))
    assert seen(encoded(image, "JPEG", exif=exif)).size == (4, 8)


def test_sixteen_bits_keep_their_brightness():
    shades = np.array([[0, 32768, 65535]], dtype=np.uint16)
    image = seen(encoded(Image.fromarray(shades)))
    assert [image.getpixel((place, 0))[0] for place in range(3)] == [0, 128, 255]


def test_a_photograph_with_a_second_picture_is_its_first():
    file = io.BytesIO()
    picture(16, 8).save(file, "MPO", save_all=True, append_images=[picture(8, 8)])
    assert seen(file.getvalue()).size == (16, 8)


def damaged(rng, whole):
    file = bytearray(whole)
    for _ in range(rng.randrange(1, 9)):
        file[rng.randrange(len(file))] = rng.randrange(256)
    return bytes(file[: rng.randrange(1, len(file) + 1)] if rng.random() < 0.3 else file)


def check_many(num_cases, seed):
    rng = random.Random(seed)
    whole = [encoded(picture(24, 16), kind) for kind in FORMATS]
    for case in range(num_cases):
        file = rng.randbytes(rng.randrange(200)) if case % 10 == 0 else damaged(rng, rng.choice(whole))
        with suppress(BadPicture):
            image = seen(file)
            assert image.mode == "RGB"
            assert image.width * image.height <= LIMITS.max_pixels


def test_damaged_files_are_seen_or_named():
    check_many(300, seed=1)


@pytest.mark.slow
def test_many_damaged_files_are_seen_or_named():
    check_many(20_000, seed=2)
