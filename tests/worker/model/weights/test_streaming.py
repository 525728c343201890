"""Windows are read by several threads: each once, told of in order, and none any more once something has failed."""

from __future__ import annotations

import threading

import pytest
import torch

from dormouse_worker.model.checksum import checksum
from dormouse_worker.model.weights import streaming
from dormouse_worker.model.weights.layout import plan_layout
from dormouse_worker.model.weights.streaming import num_threads, stream
from dormouse_worker.model.weights.windows import cut_windows

MIB = 1 << 20
WAIT_S = 90.0
TENSORS = {
    name: torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    for name, size in {"large": 9 * MIB + 5, "small": 77, "middle": 3 * MIB}.items()
}
LAYOUT = plan_layout(TENSORS.items())
WINDOWS = cut_windows(LAYOUT, MIB)


@pytest.fixture(autouse=True, params=[1, 3])
def _threads(request, monkeypatch):
    monkeypatch.setattr(streaming, "_MOST_THREADS", request.param)


def read(slot, start, end, target):
    target.copy_(TENSORS[slot.name][start:end])


def threads_left():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weights")]


class Bench:
    """Memory of each thread, and of the whole."""

    def __init__(self):
        self.whole = torch.zeros(LAYOUT.num_bytes, dtype=torch.uint8)
        self.told = []
        self._rooms = [torch.zeros(MIB, dtype=torch.uint8) for _ in range(num_threads(WINDOWS))]

    def place(self, thread, window):
        return self._rooms[thread][: window.end - window.start]

    def deliver(self, window, data):
        self.whole[window.start : window.end] = data

    def run(self, windows=WINDOWS, read=read):
        return stream(windows, read, self.place, self.deliver, self.told.append)


def test_all_bytes_are_delivered_and_summed_up():
    bench = Bench()
    assert bench.run() == {name: checksum(tensor) for name, tensor in TENSORS.items()}
    for slot in LAYOUT.slots:
        assert torch.equal(bench.whole[slot.offset : slot.offset + slot.num_bytes], TENSORS[slot.name])


def test_ends_grow_up_to_the_last():
    bench = Bench()
    bench.run()
    assert bench.told == sorted(set(bench.told))
    assert bench.told[-1] == LAYOUT.num_bytes


def test_nothing_is_told_before_all_that_lies_before_it_is_there():
    """The first window takes until another thread, where there is one, has delivered one: it has begun its second."""
    bench = Bench()
    begun = threading.Semaphore(0)

    def place(thread, window):
        begun.release()
        return bench.place(thread, window)

    def slow(slot, start, end, target):
        if (slot.name, start) == (WINDOWS[0].pieces[0].slot.name, 0) and num_threads(WINDOWS) > 1:
            for _ in range(num_threads(WINDOWS) + 1):
                assert begun.acquire(timeout=WAIT_S)
            assert bench.told == []
        read(slot, start, end, target)

    stream(WINDOWS, slow, place, bench.deliver, bench.told.append)
    assert bench.told[-1] == LAYOUT.num_bytes


@pytest.mark.parametrize("failing", [0, 4, len(WINDOWS) - 1])
def test_what_fails_is_raised_and_nobody_takes_another_window(monkeypatch, failing):
    """Whoever reads when that happens goes on once the course has ended."""
    bench = Bench()
    failed, ended = threading.Event(), threading.Event()
    begun = []
    end_course = streaming._Course.end

    def end(course):
        end_course(course)
        ended.set()

    def place(thread, window):
        if ended.is_set():
            begun.append(window)
        return bench.place(thread, window)

    def fail(slot, start, end, target):
        piece = WINDOWS[failing].pieces[0]
        if (slot.name, start) == (piece.slot.name, piece.start):
            failed.set()
            raise OSError("the disk is gone")
        if failed.is_set():
            assert ended.wait(WAIT_S)
        read(slot, start, end, target)

    monkeypatch.setattr(streaming._Course, "end", end)
    with pytest.raises(OSError, match="the disk is gone"):
        stream(WINDOWS, fail, place, bench.deliver, bench.told.append)
    assert len(begun) < num_threads(WINDOWS), "what another thread had just taken"
    assert max(bench.told, default=0) <= WINDOWS[failing].start
    assert not threads_left()


def test_who_is_told_may_end_it():
    class Stopped(Exception):
        pass

    def stop(_end):
        raise Stopped

    bench = Bench()
    delivered = []
    with pytest.raises(Stopped):
        stream(WINDOWS, read, bench.place, lambda window, _: delivered.append(window), stop)
    assert num_threads(WINDOWS) > 1 or len(delivered) == 1
    assert not threads_left()


def test_nothing_is_read_of_nothing():
    bench = Bench()
    assert bench.run(windows=()) == {}
    assert bench.told == []
