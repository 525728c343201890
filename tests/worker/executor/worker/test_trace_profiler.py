"""Torch profiles of one rank, recorded for real: what they hold, and that each mistake has its words."""

import gzip
import json

import pytest
import torch

from dormouse_worker.common.errors import InvalidArgument, ProfileNotWritten, WrongState
from dormouse_worker.executor.worker.trace_profiler import TraceProfiler


@pytest.fixture
def profiler():
    profiler = TraceProfiler(rank=2, device="cpu")
    yield profiler
    profiler.end()


def operations(path):
    """Return the names in a trace."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {event.get("name") for event in events}


def multiply():
    torch.ones(4, 4) @ torch.ones(4, 4)


def test_a_trace_holds_what_was_computed_between_start_and_stop(profiler, tmp_path):
    profiler.start(tmp_path / "new" / "place")
    multiply()
    path = profiler.stop()
    torch.ones(4).cumsum(0)
    assert path == tmp_path / "new" / "place" / "rank2-0001.trace.json.gz"
    assert "aten::mm" in operations(path)
    assert "aten::cumsum" not in operations(path)


def test_an_earlier_trace_is_never_written_over(profiler, tmp_path):
    paths = []
    for _ in range(2):
        profiler.start(tmp_path)
        paths.append(profiler.stop().name)
    assert paths == ["rank2-0001.trace.json.gz", "rank2-0002.trace.json.gz"]


def test_a_second_start_is_refused_and_the_first_goes_on(profiler, tmp_path):
    profiler.start(tmp_path)
    with pytest.raises(WrongState, match=r"a profile runs already, into .*rank2-0001"):
        profiler.start(tmp_path)
    multiply()
    assert "aten::mm" in operations(profiler.stop())


def test_a_stop_without_a_start_is_refused_and_names_the_last_trace(profiler, tmp_path):
    with pytest.raises(WrongState, match=r"no profile runs$"):
        profiler.stop()
    profiler.start(tmp_path)
    path = profiler.stop()
    with pytest.raises(WrongState, match=f"no profile runs; the last trace is {path}"):
        profiler.stop()


def test_a_directory_that_takes_no_files_is_refused_before_anything_is_recorded(profiler, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match=f"directory is '{tmp_path / 'file'}', where no trace can be written"):
        profiler.start(tmp_path / "file")
    with pytest.raises(WrongState):
        profiler.stop()


def test_a_trace_that_can_not_be_written_ends_the_profile_and_the_next_one_works(profiler, tmp_path):
    place = tmp_path / "place"
    profiler.start(place)
    (place / "rank2-0001.trace.json.gz").unlink()
    place.rmdir()
    with pytest.raises(ProfileNotWritten, match="rank2-0001"):
        profiler.stop()
    assert repr(profiler) == "TraceProfiler(idle, None)"
    profiler.start(place)
    multiply()
    assert "aten::mm" in operations(profiler.stop())


def test_an_unfinished_profile_is_written_at_the_end_and_its_loss_is_only_logged(profiler, tmp_path, caplog):
    profiler.end()
    profiler.start(tmp_path / "a")
    multiply()
    profiler.end()
    assert "aten::mm" in operations(tmp_path / "a" / "rank2-0001.trace.json.gz")
    profiler.start(tmp_path / "b")
    (tmp_path / "b" / "rank2-0001.trace.json.gz").unlink()
    (tmp_path / "b").rmdir()
    profiler.end()
    assert "the unfinished profile is lost" in caplog.text
