"""Images become files for the engine: once, in turns, within limits; who leaves or sends bombs costs others nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from PIL import Image
from safetensors.numpy import load_file

from dormouse_api.status import CallError
from dormouse_worker.files.vision_files import VisionSpec
from dormouse_worker.front.images.desk import ImageDesk
from dormouse_worker.front.images.files import MOST_FILES, ImageFiles, Key, NoRoom, ProcessedImage
from dormouse_worker.front.images.held import HeldImages
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.images.making import ImageRefused
from dormouse_worker.front.images.placeholders import ImageFacts
from tests.objects import num_objects
from tests.waiting import until
from tests.worker.front.images.kit import encoded, picture

SETTINGS = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
NUMBERS = {"patch_size": 8, "num_additional_image_tokens": 1}
SPEC = VisionSpec(
    kind="llava",
    image_token_id=5,
    marker="<image>",
    processor="CLIPImageProcessor",
    settings=SETTINGS,
    arguments={},
    tokens={"image_token": "<image>"},
    numbers=NUMBERS,
    strategy="default",
)
LIMITS = ImageLimits(max_pixels=100_000, seconds=200.0, start_s=200.0)
NUM_BYTES = 3 * 32 * 32 * 4  # of the pixels, a header besides
ONE, OTHER = encoded(picture(40, 30)), encoded(picture(40, 30, seed=1))


@pytest.fixture
async def open_desk(tmp_path):
    """Make desks that end with the test, and leave nothing."""
    made = []

    def make(limits=LIMITS, spec=SPEC):
        made.append(ImageDesk(spec, limits, folder=tmp_path))
        return made[-1]

    yield make
    for desk in made:
        desk.files.check_integrity()
        desk.close()
    assert list(tmp_path.iterdir()) == []


async def look(desk, *images, caller="a", salt=""):
    held = HeldImages()
    try:
        await desk.hold(held, images, caller=caller, salt=salt)
    except BaseException:
        held.release()
        raise
    return held


async def refused(desk, *images):
    with pytest.raises(ImageRefused) as caught:
        await look(desk, *images)
    return str(caught.value)


async def test_an_image_is_a_file_that_is_kept_for_the_next_question(open_desk):
    desk = open_desk()
    first = await look(desk, ONE, OTHER)
    assert [image.facts.shapes["pixel_values"] for image in first.images] == [[1, 3, 32, 32]] * 2
    assert load_file(first.images[0].path)["pixel_values"].shape == (1, 3, 32, 32)
    assert first.images[0].num_bytes == first.images[0].path.stat().st_size > NUM_BYTES
    first.release()
    again = await look(desk, ONE)
    assert (desk.files.num_queries, desk.files.num_hits) == (3, 1)
    assert again.images[0].digest != (await look(desk, OTHER)).images[0].digest


async def test_nobody_learns_whether_another_tenant_sent_the_image(open_desk):
    desk = open_desk()
    of_a, of_b, of_nobody = [(await look(desk, ONE, salt=salt)).images[0] for salt in ("a", "b", "")]
    assert desk.files.num_hits == 0
    assert len({of_a.digest, of_b.digest, of_nobody.digest}) == 3, "the engine shares no rows, either"
    of_a.num_users = 0
    desk.files._evict(0)
    assert (await look(desk, ONE, salt="a")).images[0].digest == of_a.digest


async def test_one_alone_is_another_image_than_among_several_where_the_model_says_so(open_desk):
    settings = {"size": {"height": 32, "width": 32}, "image_grid_pinpoints": [[32, 64], [64, 32]]}
    desk = open_desk(
        spec=replace(SPEC, kind="llava_onevision", processor="LlavaOnevisionImageProcessor", settings=settings)
    )
    (alone,) = (await look(desk, ONE)).images
    first, _ = (await look(desk, ONE, OTHER)).images
    assert [one.facts.shapes["pixel_values"][1] for one in (alone, first)] == [3, 1], "two tiles and the whole"
    assert alone.digest != first.digest
    assert (await look(desk, OTHER, ONE)).images[1] is first
    assert (await look(desk, ONE)).images == [alone]


async def test_what_is_refused_is_named_by_its_place_and_the_next_image_is_seen(open_desk):
    desk = open_desk()
    bomb = encoded(Image.new("1", (1000, 101)))
    assert "image 2 cannot be used: it is 1000 × 101 pixels; allowed: 100000" in await refused(desk, ONE, bomb)
    assert "cannot be decoded" in await refused(desk, b"hush" * 100)
    assert "hush" not in await refused(desk, b"hush" * 100)
    (await look(desk, ONE)).release()
    assert desk.files.used_bytes == 0


async def test_two_who_ask_about_one_image_at_once_wait_for_one_process(open_desk):
    desk = open_desk()
    one, two = await asyncio.gather(look(desk, ONE), look(desk, ONE, caller="b"))
    assert one.images == two.images
    assert (one.images[0].num_users, desk.files.num_bytes) == (2, one.images[0].num_bytes)


async def test_a_process_that_dies_costs_its_image_and_is_replaced(open_desk):
    desk = open_desk()
    (await look(desk, ONE)).release()
    process = next(one for one in desk._pool._processes if one._process)
    os.kill(process._process.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(look(desk, OTHER))
    await until(lambda: desk._pool._busy)
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(ImageRefused, match="took too much time or memory"):
        await waiting
    assert (await look(desk, OTHER)).images


async def test_a_stuck_process_is_killed_in_time(open_desk):
    desk = open_desk(replace(LIMITS, seconds=0.5))
    await desk.warm()
    process = next(one for one in desk._pool._processes if one._process)
    os.kill(process._process.pid, signal.SIGSTOP)
    assert "took longer than 0.5 s, processing this image" in await refused(desk, OTHER)


async def test_memory_is_bounded(open_desk):
    desk = open_desk(replace(LIMITS, max_pixels=10**9, memory_bytes=48 << 20))
    assert "more memory than an image may take" in await refused(desk, encoded(Image.new("RGB", (6000, 5000))))


async def test_who_leaves_takes_his_image_along(open_desk, tmp_path):
    desk = open_desk()
    (await look(desk, ONE)).release()
    process = next(one for one in desk._pool._processes if one._process)
    os.kill(process._process.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(look(desk, OTHER))
    await until(lambda: desk._pool._busy)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    os.kill(process._process.pid, signal.SIGCONT)
    await until(lambda: not desk._pool._busy)
    assert [path.suffix for path in tmp_path.iterdir() if path.is_file()] == [".safetensors"], "of the first one"
    assert (desk.files.used_bytes, desk._making) == (0, {})


async def test_images_in_use_have_a_limit_and_others_make_room(open_desk):
    desk = open_desk(replace(LIMITS, cache_bytes=NUM_BYTES + 4000))
    held = await look(desk, ONE)
    with pytest.raises(CallError, match=r"the limit is .* bytes") as caught:
        await look(desk, OTHER)
    assert caught.value.code.name == "RESOURCE_EXHAUSTED"
    held.release()
    assert (await look(desk, OTHER)).images
    assert desk.files.num_bytes < 2 * NUM_BYTES


async def test_files_that_wait_have_a_limit(open_desk):
    desk = open_desk(replace(LIMITS, waiting_bytes=len(ONE) + len(OTHER) - 1))
    with pytest.raises(CallError, match=r"images of 0 bytes wait already and these have \d+; the limit is \d+ bytes"):
        await look(desk, ONE, OTHER)
    assert (await look(desk, ONE)).images
    assert desk._num_waiting_bytes == 0


async def test_a_disk_that_is_full_is_no_fault_of_the_image(open_desk):
    desk = open_desk()
    desk._own.rmdir()
    with pytest.raises(CallError, match="does not fit") as caught:
        await look(desk, ONE)
    assert caught.value.code.name == "RESOURCE_EXHAUSTED"
    desk._own.mkdir()
    assert (await look(desk, ONE)).images


async def test_tensors_that_do_not_fit_are_refused_by_name(open_desk):
    desk = open_desk(replace(LIMITS, max_tensor_bytes=1000))
    assert "its tensors do not fit the memory for images" in await refused(desk, ONE)


async def test_settings_that_no_processor_takes_are_named(open_desk):
    desk = open_desk(spec=replace(SPEC, settings={"size": {"nonsense": 1}}))
    assert "processor" in await refused(desk, ONE)


async def test_a_closed_desk_refuses(open_desk):
    desk = open_desk()
    desk.close()
    desk._own.mkdir()
    assert "serves another model now" in await refused(desk, ONE)


def test_what_was_used_longest_ago_goes_first(tmp_path):
    files = ImageFiles(100)
    for name in "abc":
        (tmp_path / name).write_bytes(b"x")
        files.add(Key("", name.encode()), ProcessedImage(tmp_path / name, 30, b"", ImageFacts({})))
    files.take(Key("", b"a"))
    files.add(Key("", b"d"), ProcessedImage(tmp_path / "d", 40, b"", ImageFacts({})))
    assert [files.find(Key("", name.encode())) is not None for name in "abcd"] == [True, False, True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]
    with pytest.raises(NoRoom, match="images of 100 bytes are in use and this one has 1; the limit is 100 bytes"):
        files.add(Key("", b"e"), ProcessedImage(tmp_path / "e", 1, b"", ImageFacts({})))
    with pytest.raises(NoRoom):
        files.check_room()
    files.check_integrity()


def test_by_order_all_go_that_nobody_uses(tmp_path):
    files = ImageFiles(100)
    for name in "abc":
        (tmp_path / name).write_bytes(b"x")
        files.add(Key("", name.encode()), ProcessedImage(tmp_path / name, 30, b"", ImageFacts({})))
    files.take(Key("", b"b"))
    files.forget()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (files.num_bytes, files.used_bytes) == (30, 30)
    files.check_integrity()


def known_after(files, folder, numbers):
    """Add an image of each number; return how many objects there are then."""
    for number in numbers:
        facts = ImageFacts({"pixel_values": [1, 3, number]}, {"grid": [number]})
        image = ProcessedImage(folder / f"{number}.safetensors", 1, number.to_bytes(32, "big"), facts)
        files.add(Key(f"{number}", number.to_bytes(32, "big")), image)
    return num_objects()


def test_small_images_are_kept_by_number_and_no_object_stays_of_others(tmp_path):
    """Files of some bytes never fill the room for files, but what is known of them would fill the front."""
    files = ImageFiles(1 << 30)
    warm, then = (known_after(files, tmp_path, range(start, start + 2 * MOST_FILES)) for start in (0, 2 * MOST_FILES))
    assert then - warm < MOST_FILES, "not one of each image"
    assert files.num_bytes == MOST_FILES
    for number in range(3 * MOST_FILES, 4 * MOST_FILES):
        assert files.take(Key(f"{number}", number.to_bytes(32, "big"))), "the newest stay"
    known_after(files, tmp_path, range(10_000, 10_010))
    assert files.num_bytes == MOST_FILES + 1, "those in use stay, whatever their number, and one that is new"
    files.check_integrity()
