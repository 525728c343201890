"""Which builds are kept, and how the image tools fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.images import base, build, content
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
        build.check_free_space(tmp_path, 10**18)


def test_a_rebuild_of_code_needs_no_free_space(tmp_path: Path):
    build.check_free_space(tmp_path, 0)


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
