"""A race of engines: whose turn it is, which rows come of it, and what the sides' programs do."""

from __future__ import annotations

import io
import os
import signal
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest
from rich.console import Console

from bench import neighbours
from bench.helpers import Helper, Job
from bench.limits import usual_of
from bench.memory import peak_mib
from bench.models import SHAPES
from bench.options import Options
from bench.race import OURS, TRANSFORMERS, Laps, Race, race, requests_of
from bench.race_figures import (
    SPEED,
    cached_share,
    first_token_rows,
    per_token_rows,
    product_rows,
    read_rows,
    speed_rows,
    work_gflop,
)
from bench.replies import Reply
from bench.results import RatioAtLeast
from bench.traces import Trace
from bench.workload import Request

HALF, SINGLE = "vLLM bfloat16", "vLLM float32"


class Side:
    """Stands for a `Helper`: notes the jobs, and answers each request with one token per second."""

    def __init__(self, name, log):
        self._name, self._log = name, log

    def run(self, job):
        self._log.append((self._name, len(job.requests), job.requests[0].prompt[:3]))
        return [Reply([1] * request.max_tokens, 0.0, 1.0, float(request.max_tokens)) for request in job.requests]


def run_race(*names, measure_limit=None, **options):
    log = []
    sides = {name: Side(name, log) for name in names}
    measure = measure_limit and partial(measure_limit, log)
    laps = Race("tiny", sides, Options(**options), Console(file=io.StringIO())).run("W2", measure_limit=measure)
    return log, laps


def reply(tokens=10, first_s=1.0, last_s=10.0, prompt=0, cached=0):
    return Reply([1] * tokens, 0.0, first_s, last_s, prompt_tokens=prompt, cached_tokens=cached)


def laps(*limits, **seconds):
    """Return one repetition per side of one reply with ten tokens in so many seconds; `limits`: the machine's in it."""
    names = {"ours": OURS, "half": HALF, "single": SINGLE, "hf": TRANSFORMERS}
    return Laps({names[side]: [[reply(last_s=last_s)]] for side, last_s in seconds.items()}, limits)


def figures(rows):
    return {row.what: (row.ours, row.peer, row.holds) for row in rows}


def test_the_sides_take_turns_on_the_same_requests_and_the_warm_up_does_not_count():
    log, result = run_race(OURS, HALF, reps=2)
    assert [name for name, _, _ in log] == [OURS, HALF] * 3
    assert [prompt for _, _, prompt in log[::2]] == [prompt for _, _, prompt in log[1::2]]
    assert len({tuple(prompt) for _, _, prompt in log}) == 3
    assert {side: len(rounds) for side, rounds in result.replies.items()} == {OURS: 2, HALF: 2}


def test_what_the_machine_can_do_is_measured_before_each_repetition_that_counts():
    _, result = run_race(OURS, HALF, reps=2, measure_limit=len)
    assert result.limits == [2, 4]  # laps before it


def test_a_share_is_of_what_the_machine_could_do_in_the_same_repetition():
    rates = [[reply(last_s=1 / rate)] for rate in (8, 2, 6)]
    result = Laps({OURS: rates}, limits=[10, 4, 8])
    assert result.share_of_limit(OURS, lambda replies: 1 / replies[0].last_s) == pytest.approx(75)


def test_vllm_s_share_is_that_of_the_way_with_the_largest():
    limits, ours = [1, 10, 100], [[reply()]] * 3
    ways = {HALF: [0.1, 5, 20], SINGLE: [0.9, 2, 30]}  # GFLOP/s: medians 5 and 2, of the limits 20 and 30 %
    gflop = work_gflop(SHAPES["tiny"], [reply()])
    rounds = {way: [[reply(last_s=gflop / rate)] for rate in rates] for way, rates in ways.items()}
    _, share = product_rows("W4", "tiny", Laps({OURS: ours, **rounds}, limits))
    assert share.peer == pytest.approx(30, rel=1e-3)


def test_transformers_is_warmed_up_with_few_requests_and_measured_once():
    log, result = run_race(OURS, TRANSFORMERS, reps=3, count=6)
    assert [count for name, count, _ in log if name == TRANSFORMERS] == [4, 6]
    assert {side: len(rounds) for side, rounds in result.replies.items()} == {OURS: 3, TRANSFORMERS: 1}


def test_large_models_get_fewer_requests_unless_the_number_is_given():
    assert len(requests_of("tiny", "W1", 0, Options())) == 64
    assert len(requests_of("q05", "W1", 0, Options())) == 16
    assert len(requests_of("q05", "W1", 0, Options(count=3))) == 3


def test_without_vllm_the_race_goes_on_and_says_how_to_get_it(monkeypatch, tmp_path):
    started = []

    class Started(Side):
        def __init__(self, *command, **_):
            super().__init__(command[0], [])
            started.append(command[0])

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setenv("DORMOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr("bench.race.Helper", Started)
    monkeypatch.setattr("bench.race.ensure_model", lambda name, dtype: Path(f"/{name}-{dtype}"))
    console = Console(file=io.StringIO(), width=200)
    with race("tiny", Options(ways=("bfloat16",)), console) as sides:
        assert repr(sides) == "Race(tiny: ours, transformers)"
    assert started == ["bench.ours", "bench.peer"]
    assert "make bench-peers" in console.file.getvalue()


def test_vllm_counts_with_its_best_way_of_each_figure():
    rows = figures(speed_rows("W1", "tiny", laps(ours=4, half=8, single=5), {"vLLM": SPEED}))
    assert rows == {
        "throughput W1, tiny bf16, beside vLLM": (2.5, 2.0, True),
        "throughput W1, tiny bf16: vLLM bfloat16": (1.25, None, None),
        "throughput W1, tiny bf16: vLLM float32": (2.0, None, None),
    }
    rows = figures(per_token_rows("W2", "small", laps(ours=5.5, half=10, single=5.5)))
    assert rows["time per output token W2, small bf16, beside vLLM"] == (500, 500, True)


def test_transformers_has_a_row_and_a_goal_of_its_own():
    goals = {TRANSFORMERS: RatioAtLeast(4), "vLLM": SPEED}
    rows = figures(speed_rows("W1", "tiny", laps(ours=1, hf=5), goals))
    assert rows == {"throughput W1, tiny bf16, beside transformers": (10.0, 2.0, True)}


def test_alone_there_is_a_row_without_a_peer():
    assert figures(first_token_rows("W2", "tiny", laps(ours=5), {})) == {
        "time to first token W2, tiny bf16": (1000, None, None)
    }


def test_the_work_is_what_the_matrices_multiply():
    shape = SHAPES["tiny"]
    layers = 4 * (2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 688)
    assert (shape.layer_weights, shape.head_weights) == (layers, 256 * 4096)
    one = reply(tokens=3, prompt=20, cached=16)
    assert work_gflop(shape, [one]) == pytest.approx(2e-9 * ((4 + 3 - 1) * layers + 3 * 256 * 4096))


def test_the_limit_of_products_stands_beside_each_side_s_share_of_it():
    gflop = work_gflop(SHAPES["tiny"], [reply()])
    limit, share = product_rows("W4", "tiny", laps(1000 * gflop, ours=4, half=8, single=5))
    assert limit.ours == pytest.approx(1000 * gflop, rel=1e-3)
    assert (share.ours, share.peer) == pytest.approx((100 / 4000, 100 / 5000), rel=1e-3)


def test_the_read_limit_binds_models_that_fit_no_cache():
    weights_gb = 2e-9 * (SHAPES["small"].layer_weights + SHAPES["small"].head_weights)
    limit, share = read_rows("W2", "small", laps(1.25 * weights_gb, ours=10, half=19))
    assert limit.unit == "GB/s"
    assert (share.ours, share.peer, share.holds) == (80, 40, False)
    _, share = read_rows("W2", "tiny", laps(1.0, ours=10))
    assert (share.peer, share.goal) == (None, None)


def test_the_cached_share_is_of_all_prompt_tokens():
    assert cached_share([[reply(prompt=30, cached=15)], [reply(prompt=70, cached=10)]]) == 25


def test_a_trace_tells_what_came_and_when():
    trace = Trace(Request("7", [1, 2, 3], 3), submitted_s=1.0)
    trace.add([5], 2.0, cached_tokens=2)
    assert repr(trace) == "Trace(7, 1 of 3 tokens)"
    with pytest.raises(RuntimeError, match="request 7 got 1 tokens of 3"):
        trace.reply()
    trace.add([6, 7], 3.0)
    assert trace.reply() == Reply([5, 6, 7], 1.0, 2.0, 3.0, 2, 3, 2)


def test_ways_take_turns_and_each_keeps_its_usual_time():
    calls, clock = [], accumulate([0, 99, 0, 99, *(0, 3, 0, 2), *(0, 1, 0, 9), *(0, 7, 0, 5)])  # warms up first
    runs = [lambda: calls.append("a"), lambda: calls.append("b")]
    assert usual_of(runs, rounds=3, clock=clock.__next__) == [3, 5]
    assert calls == ["a", "b"] * 4


def test_peaks_are_added_up_over_all_processes_below(tmp_path):
    for pid, parent, peak in ((10, 1, 1024), (11, 10, 2048), (12, 11, 512), (20, 1, 4096)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {parent} 0 0")
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nVmHWM:\t{peak} kB\n")
    assert peak_mib(10, tmp_path) == 3.5


def state_of(pid):
    return (neighbours.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]


def test_who_rests_is_stopped_between_its_answers_and_ends_all_the_same():
    with Helper("tests.bench.echo", rests=True) as helper:
        for _ in range(2):
            assert helper.run(Job((Request("1", [1], 1),))) == [Reply([1], 0.0, 1.0, 1.0)]
            _, status = os.waitpid(helper.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            assert os.WSTOPSIG(status) == signal.SIGSTOP
            assert state_of(helper.pid) == "T"
    assert helper.pid not in neighbours.stats_below(os.getpid())
