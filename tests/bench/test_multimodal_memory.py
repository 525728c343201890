"""What images leave behind is told by part of the system, and by a line through what came after the first ones."""

import io
import os
import sys
from itertools import islice

import pytest
from PIL import Image

from bench.multimodal_http import pictures
from bench.multimodal_memory import OTHERS, Reading, part_of, read_memory, rows_of

KIB = 1024


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("python -m dormouse_worker --model x", "front"),
        ("python -u -m dormouse_worker.engine_process --socket s", "engine"),
        ("python -m dormouse_worker.pictures.program", "process of images"),
        ("python -m dormouse_worker.front.text.template_process", OTHERS),
        ("python -m bench.front_door model 1", "gateway"),
        ("sleep 1", OTHERS),
    ],
)
def test_a_process_is_known_by_its_module(command, part):
    """Names are those of the programs, whatever stands around them."""
    assert part_of(command.split()) == part


def test_growth_is_that_behind_the_first_images():
    """What fills at the beginning is no growth; each part has a line of its own."""
    readings = [
        Reading(number, {"front": min(number, 30) * 1000 * KIB, "engine": number * 5 * KIB})
        for number in range(10, 110, 10)
    ]
    engine, front = rows_of(readings, 100)
    assert ("engine" in engine.what, "front" in front.what) == (True, True)
    assert (engine.ours, engine.holds) == (5 * KIB, False)
    assert (front.ours, front.holds) == (0, True)


def test_a_buffer_that_comes_and_goes_is_no_growth():
    """It is there in some readings, and that the last is one of them says nothing."""
    sizes = [7, 0, 7, 7, 7, 0, 7, 7]
    [front] = rows_of([Reading(30 + 10 * n, {"front": size << 20}) for n, size in enumerate(sizes)], 100)
    assert front.ours == 0


def test_a_part_that_comes_later_grows_from_nothing():
    """A process that was not there in one reading had no memory then."""
    [late, _] = rows_of([Reading(80, {"front": 1}), Reading(90, {"front": 1, "engine": 10 * KIB})], 100)
    assert late.ours == KIB


def test_memory_is_what_processes_have_changed(tmp_path):
    """Dirty pages of all below are added up by part; who has ended is left out."""
    told = "Rss: 90 kB\nShared_Clean: 50 kB\nShared_Dirty:   8 kB\nPrivate_Clean: 20 kB\nPrivate_Dirty:  12 kB\n"
    for pid, parent, command in ((1, 0, "-m dormouse_worker"), (2, 1, "-m dormouse_worker.engine_process"), (3, 1, "")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {parent} 0")
        (tmp_path / str(pid) / "cmdline").write_text(command.replace(" ", "\0"))
        if command:
            (tmp_path / str(pid) / "smaps_rollup").write_text(told)
    assert read_memory([1], tmp_path) == {"front": 20 * KIB, "engine": 20 * KIB}


def test_memory_of_this_very_process_is_read():
    """The kernel's own words are understood."""
    [size] = read_memory([os.getpid()]).values()
    assert size > 1 << 20, sys.version


def test_pictures_are_of_their_size_and_each_another():
    """No two are the same file, nor the same pixels."""
    files = [*islice(pictures(320, 272), 3)]
    seen = [Image.open(io.BytesIO(file)) for file in files]
    assert {one.size for one in seen} == {(320, 272)}
    assert len({one.tobytes() for one in seen}) == 3
