"""Remembered profiles: believed as far as they can be verified."""

import dataclasses

import pytest

from dormouse_worker.model.memory.arithmetic import Measured
from dormouse_worker.model.memory.profile_cache import (
    ProfileCache,
    ProfileKey,
    Remembered,
    find_difference,
    software_versions,
)

MIB = 1 << 20
KEY = ProfileKey("model", "settings", "cpu, 1 threads", ("1", "2"))
MEASURED = Measured(100 * MIB, 50 * MIB, 300 * MIB, 2.5, graph_bytes=7, measured_by="nvml")
REMEMBERED = Remembered(MEASURED, 1024 * MIB)


@pytest.fixture
def cache(tmp_path):
    return ProfileCache(tmp_path / "made" / "when needed")


def test_what_is_put_comes_back(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, REMEMBERED)
    assert cache.get(KEY) == REMEMBERED
    assert [path.name for path in cache.path(KEY).parent.iterdir()] == [cache.path(KEY).name]


@pytest.mark.parametrize("field", ["model_digest", "settings_digest", "device", "versions"])
def test_another_model_setting_device_or_version_is_another_profile(cache, field):
    cache.put(KEY, REMEMBERED)
    other = {**{name: getattr(KEY, name) for name in KEY.__struct_fields__}, field: ("x",)}
    assert cache.get(ProfileKey(**other)) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is ignored"),
        (b'{"measured": {"weights_bytes": 1', "is ignored"),
        (b'{"measured": 7, "total_bytes": 1}', "is ignored"),
        (b"[]", "is ignored"),
        (b"\xff\xfe", "is ignored"),
    ],
)
def test_a_damaged_file_is_ignored_with_a_line_in_the_log(cache, content, words, caplog):
    cache.put(KEY, REMEMBERED)
    cache.path(KEY).write_bytes(content)
    assert cache.get(KEY) is None
    assert str(cache.path(KEY)) in caplog.text
    assert words in caplog.text
    cache.put(KEY, REMEMBERED)
    assert cache.get(KEY) == REMEMBERED


def test_a_size_below_zero_is_damage_too(cache, caplog):
    cache.put(KEY, Remembered(dataclasses.replace(MEASURED, non_torch_bytes=-1), 1))
    assert cache.get(KEY) is None
    assert "holds a size below 0" in caplog.text


def test_a_place_that_can_not_be_read_or_written_stops_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = ProfileCache(tmp_path / "file")
    cache.put(KEY, REMEMBERED)
    assert cache.get(KEY) is None
    assert "the profile is not remembered" in caplog.text


def test_a_write_that_fails_leaves_the_former_file_and_no_other(cache, caplog):
    cache.put(KEY, REMEMBERED)
    cache.path(KEY).unlink()
    cache.path(KEY).mkdir()  # in whose place no file can be put
    cache.put(KEY, REMEMBERED)
    assert "not remembered" in caplog.text
    assert [path.name for path in cache.path(KEY).parent.iterdir()] == [cache.path(KEY).name]


NOW = {
    "weights_bytes": 100 * MIB,
    "total_bytes": 1024 * MIB,
    "rest_bytes": 390 * MIB,
    "free_bytes": 500 * MIB,
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"rest_bytes": 200 * MIB}, ""),
        ({"rest_bytes": 420 * MIB}, ""),  # 400 at rest, and 5 % of the 450 that are needed
        ({"free_bytes": 61 * MIB}, ""),
        ({"weights_bytes": 100 * MIB + 1}, "the weights take 104857601 bytes, not 104857600"),
        ({"total_bytes": 512 * MIB}, "there are 536870912 bytes to share, not 1073741824"),
        ({"rest_bytes": 423 * MIB}, "423.0 MiB are held at rest, not 400.0 MiB"),
        ({"free_bytes": 30 * MIB}, "30.0 MiB of memory are missing"),
    ],
)
def test_what_is_remembered_holds_only_where_everything_cheap_agrees(changed, words):
    assert find_difference(REMEMBERED, **{**NOW, **changed}) == words


def test_the_versions_are_those_of_everything_that_takes_memory():
    assert len(software_versions()) == len(set(software_versions())) == 5
