"""Which builds are kept, and how the image tools fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.bootstrap import ROOT
from tools.images import base, build, content, room, wheels
from tools.images.settings import ImagesFailed, Settings
from tools.images.store import find_program, run_program

VERSION = content.VERSION
NAMES = build.Names("r.example/d", f"{VERSION}-today", {part: f"env-{part}" for part in content.PARTS})


def images(build_of: str) -> list[str]:
    return [f"r.example/d/{part}:{VERSION}-{build_of}" for part in content.PARTS]


def test_the_current_build_its_environments_and_the_base_are_never_removed():
    everything = sorted(NAMES.needed())
    assert build.old_names(everything, NAMES, keep=1) == []
    never_removed = {base.base_name(), f"r.example/d/worker:{VERSION}", "localhost/dormouse/worker-env:env-worker"}
    assert never_removed <= NAMES.needed()


def test_only_the_newest_builds_of_other_sources_are_kept():
    by_age = [*images("today"), *images("b"), *images("c"), *images("d")]
    assert build.old_names(by_age, NAMES, keep=3) == images("d")


def test_pruning_keeps_the_current_build_even_when_it_is_the_oldest():
    by_age = [*images("newer"), *images("today")]
    assert build.old_names(by_age, NAMES, keep=1) == images("newer")


def test_environments_of_other_locks_and_other_bases_are_removed():
    old = ["localhost/dormouse/worker-env:older", "localhost/dormouse/base:older"]
    assert build.old_names([*old, *sorted(NAMES.needed())], NAMES, keep=3) == old


def test_too_little_space_is_told_with_both_numbers_and_a_remedy(tmp_path: Path):
    with pytest.raises(ImagesFailed, match=r"[\d,]+ bytes free .* needs 1,000,000,000,000,000,000 .*DORMOUSE_CACHE"):
        room.check_free_space(tmp_path, 10**18)


def test_a_rebuild_of_code_removes_nothing_to_make_room(tmp_path: Path):
    said: list[str] = []
    room.make_room(tmp_path, 0, lambda: pytest.fail("removed"), said.append)
    assert said == []


def test_older_builds_go_when_the_disk_is_short_of_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = iter([5, 20])
    monkeypatch.setattr(room, "free_bytes", lambda _: next(free))
    removals: list[str] = []
    said: list[str] = []
    room.make_room(tmp_path, 10, lambda: removals.append("old builds"), said.append)
    assert removals == ["old builds"]
    assert said == ["the disk is short of space: removing the images of older sources"]


def test_removing_older_builds_may_not_be_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "free_bytes", lambda _: 5)
    with pytest.raises(ImagesFailed, match="has 5 bytes free and building the images needs 10"):
        room.make_room(tmp_path, 10, lambda: None, lambda _: None)


def test_what_a_killed_run_left_in_the_scratch_folder_is_removed(tmp_path: Path):
    settings = Settings(cache=tmp_path)
    settings.scratch.mkdir(parents=True)
    (settings.scratch / "half-a-layer").touch()
    build.clear_scratch(settings)
    assert list(settings.scratch.iterdir()) == []


def test_a_failing_program_is_told_with_its_last_lines_and_the_place_of_its_log(tmp_path: Path):
    log = tmp_path / "build.log"
    script = "for i in range(50): print('line', i)\nraise SystemExit(3)"
    with pytest.raises(ImagesFailed) as failure:
        run_program([sys.executable, "-c", script], log=log)
    text = str(failure.value)
    assert "ended with 3" in text
    assert "line 49" in text
    assert "line 29\n" not in text
    assert str(log) in text


def test_a_missing_program_is_told_with_how_to_get_it():
    with pytest.raises(ImagesFailed, match=r"no-such-program is missing; install it, .*apt-get install it"):
        find_program("no-such-program", "apt-get install it")


def test_a_build_mounts_the_kernels_that_were_compiled_here(tmp_path: Path):
    program = tmp_path / "worker_image" / "dormouse_worker" / "native" / "build.py"
    program.parent.mkdir(parents=True)
    program.write_text("print('/made/here/lib.so')")
    assert wheels.kernel_mounts(tmp_path) == {Path("/made/here"): "/srv"}


def test_without_a_compiler_here_none_are_mounted(tmp_path: Path):
    assert wheels.kernel_mounts(tmp_path) == {}


def test_the_dockerfile_looks_for_kernels_where_they_are_mounted():
    assert f"{wheels.KERNELS_INSIDE}/*.so" in (ROOT / "Dockerfile").read_text()
