"""What is refused of images before anything is computed."""

import os

import pytest

from dormouse_worker.common.images import ImageInput
from dormouse_worker.engine.images.intake import MAX_IMAGE_BYTES, why_no_images


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def ask(folder, *images, max_rows=8, length=20):
    return why_no_images(images, length, max_rows=max_rows, folder=str(folder))


def image(*spans, tensors="a", num_bytes=5):
    return ImageInput(bytes(32), list(spans), tensors, num_bytes)


def test_images_in_their_places_are_taken(folder):
    assert ask(folder) is None
    assert ask(folder, image((0, 3), (4, 5)), image((9, 8))) is None


@pytest.mark.parametrize(
    ("images", "why"),
    [
        ([image((18, 3))], "images[0] has tokens at [18, 21); they may lie in [0, 20), ascending"),
        ([image((2, 0))], "images[0] has tokens at [2, 2); they may lie in [0, 20), ascending"),
        ([image((-1, 2))], "images[0] has tokens at [-1, 1); they may lie in [0, 20), ascending"),
        ([image((0, 4)), image((3, 2))], "images[1] has tokens at [3, 5); they may lie in [4, 20), ascending"),
        ([image()], "images[0] has no tokens"),
        ([image((0, 9))], "images[0] takes 9 tokens; the limit is 8"),
        ([image((0, 3), num_bytes=0)], f"images[0] takes 0 bytes; the limit is {MAX_IMAGE_BYTES}"),
        ([image((0, 3), tensors="../a")], "images[0] names a file outside the folder of images"),
        ([image((0, 3), tensors="")], "images[0] has a file of"),
        ([image((0, 3), tensors="b")], "images[0] has no file"),
        ([image((0, 3), tensors="\0")], "images[0] has no file"),
        ([image((0, 3), num_bytes=4)], "images[0] has a file of 5 bytes; it should have 4"),
        ([image((0, 3), tensors="link")], "images[0] has a file of"),
        ([image((0, 3), tensors="pipe")], "images[0] has a file of 0 bytes; it should have 5"),
    ],
)
def test_the_rest_is_refused_with_what_is_wrong(folder, images, why):
    assert ask(folder, *images).startswith(why)


def test_a_model_without_eyes_and_a_worker_without_a_folder_take_none(folder):
    assert ask(folder, image((0, 3)), max_rows=0) == "the prompt has 1 images; this worker reads none"
    assert ask("", image((0, 3))) == "the prompt has 1 images; this worker reads none"
