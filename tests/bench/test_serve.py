"""Who serves at which rate, and the rows and curves that come of it."""

from __future__ import annotations

import io
from contextlib import contextmanager
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench import serve
from bench.curves_picture import MOST_TICKS, Panel, draw, ticks
from bench.options import MODELS, Options, run
from bench.race import OURS
from bench.replies import Reply
from bench.results import Row
from bench.serve_client import Lap
from bench.serve_figures import Found, Point, latency_panels, throughput_panels, to_rows
from bench.serve_race import UNLIMITED, Load, ServeRace, best_way, count_at, dtypes_of
from bench.serve_streams import to_row

HALF, SINGLE = "vLLM bfloat16", "vLLM float32"
SVG = "{http://www.w3.org/2000/svg}"
METRICS = ("ttft", "tpot", "itl", "e2el")


def lap(rate=1.0, times_ms=10.0, output=100.0):
    """Return a lap of one rate whose times are all the same."""
    times = {f"p{percent}_{metric}_ms": times_ms for percent in (50, 99) for metric in (*METRICS, "late")}
    return Lap({"request_throughput": rate, "request_goodput": rate, "output_throughput": output, **times})


class Side:
    """Stands for a server: notes when it was let run."""

    def __init__(self, name, log):
        self.kind = "ours" if name == OURS else "vLLM"
        self.port = sum(name.encode())
        self._name, self._log = name, log

    @contextmanager
    def turn(self):
        self._log.append(self._name)
        yield


class Client:
    """Stands for the client's process: saturates at the port's own rate, and keeps what it was asked."""

    def __init__(self, rates):
        self.asks = []
        self._rates = rates

    def ask(self, question, _kind):
        self.asks.append(question)
        return lap(self._rates[question.port])


def race(rates, **options):
    """Return what a race of sides with these saturation rates found, whose turn it was, and what was asked."""
    turns = []
    sides = {name: Side(name, turns) for name in rates}
    client = Client({sides[name].port: rate for name, rate in rates.items()})
    found = ServeRace("tiny", client, sides, Options(**options), Console(file=io.StringIO())).run()
    return found, turns, client.asks


def test_all_sides_saturate_and_ours_races_with_the_way_that_saturates_last():
    found, turns, asks = race({OURS: 90.0, HALF: 10.0, SINGLE: 20.0}, reps=2)
    assert turns == [OURS, HALF, SINGLE] * 2 + [OURS, SINGLE] * 2
    assert (found.way, found.rate_per_s, len(found.rounds), found.points) == (SINGLE, 20.0, 2, ())
    assert {ask.max_concurrency for ask in asks[:6]} == {64}
    assert {ask.max_concurrency for ask in asks[6:]} == {UNLIMITED}


def test_both_sides_of_a_round_get_the_same_requests_at_the_same_times_and_no_round_another_s():
    _, _, asks = race({OURS: 90.0, HALF: 10.0}, reps=3)
    for ours, peer in zip(asks[::2], asks[1::2], strict=True):
        assert (ours.requests, ours.due_s, ours.warm_up) == (peer.requests, peer.due_s, peer.warm_up)
    prompts = [tuple(request.prompt) for ask in asks[::2] for request in (*ask.requests, ask.warm_up)]
    assert len(set(prompts)) == len(prompts)
    assert len({ask.due_s for ask in asks[4::2]}) == 3


def test_arrivals_come_at_the_share_of_the_peer_s_rate():
    _, _, asks = race({OURS: 90.0, HALF: 20.0}, reps=1)
    due_s = asks[-1].due_s
    assert len(due_s) == count_at(14.0) == 256
    assert len(due_s) / due_s[-1] == pytest.approx(14.0, rel=0.2)
    assert set(asks[2].due_s) == {0.0}


def test_a_run_takes_its_time_but_never_too_few_or_too_many_requests():
    assert [count_at(rate) for rate in (0.1, 2.0, 1000.0)] == [32, 150, 256]


def test_the_number_of_requests_can_be_given():
    _, _, asks = race({OURS: 90.0, HALF: 20.0}, reps=1, count=5)
    assert {len(ask.requests) for ask in asks} == {5}


def test_without_vllm_there_is_no_rate_and_no_race():
    found, turns, _ = race({OURS: 90.0}, reps=3)
    assert found is None
    assert turns == [OURS] * 2
    assert best_way({OURS: lap()}) is None


def test_a_server_has_an_engine_process_of_its_own_in_every_way():
    assert dtypes_of(("bfloat16", "float32-own-process", "bfloat16-own-process")) == ["bfloat16", "float32"]


def test_a_sweep_goes_over_concurrency_and_rate():
    found, _, asks = race({OURS: 90.0, HALF: 10.0}, reps=1, picture=True)
    assert [(point.kind, point.value) for point in found.points] == [
        ("concurrency", 1),
        ("concurrency", 4),
        ("concurrency", 16),
        ("fraction", 0.3),
        ("fraction", 0.5),
        ("fraction", 0.9),
    ]
    assert [ask.max_concurrency for ask in asks[6:12:2]] == [1, 4, 16]


def test_all_models_are_the_two_smaller_and_the_largest_has_to_be_named():
    assert serve.models_of(Options(models=MODELS)) == ("tiny", "small")
    assert serve.models_of(Options(models=("q05",))) == ("q05",)


def found_with(ours_ms=8.0, peer_ms=10.0, points=()):
    """Return a race of three rounds, the middle one with these times."""
    saturated = {OURS: lap(30.0, output=300.0), HALF: lap(10.0), SINGLE: lap(20.0, output=200.0)}
    rounds = [{OURS: lap(times_ms=ours_ms * k), SINGLE: lap(times_ms=peer_ms * k)} for k in (0.5, 1, 20)]
    return Found("small", SINGLE, 64, saturated, rounds, points)


def test_the_middle_round_counts_and_only_the_last_hundredth_of_ttft_and_itl_has_a_goal():
    rows = {row.what: row for row in to_rows(found_with(8.0, 10.0))}
    at_rate = "serve at 70 % of vLLM's saturation, small bf16: "
    assert (rows[f"{at_rate}p50 E2EL"].ours, rows[f"{at_rate}p50 E2EL"].peer) == (8.0, 10.0)
    assert {what.removeprefix(at_rate): row.holds for what, row in rows.items() if row.goal} == {
        "p99 TTFT": True,
        "p99 ITL": True,
    }
    assert not any(row.holds for row in to_rows(found_with(8.1, 10.0)))


def test_the_rate_and_each_way_s_saturation_are_told():
    rows = {row.what: (row.ours, row.peer) for row in to_rows(found_with())}
    assert rows["serve at 70 % of vLLM's saturation, small bf16: rate"] == (14.0, None)
    assert rows["serve, small bf16, 64 under way: saturation rate"] == (30.0, 20.0)
    assert rows["serve, small bf16, 64 under way: saturation rate of vLLM bfloat16"] == (10.0, None)
    assert "serve at 70 % of vLLM's saturation, small bf16: goodput (TTFT ≤ 2000 ms, TPOT ≤ 200 ms)" in rows


def test_a_sweep_s_points_are_rows_without_goals_and_all_rows_say_something_else():
    laps = {OURS: lap(), SINGLE: lap()}
    rows = to_rows(found_with(points=(Point("concurrency", 4, laps), Point("fraction", 0.3, laps))))
    names = [row.what for row in rows]
    assert len(set(names)) == len(names)
    assert names[-3:] == [
        "serve, small bf16, 4 under way: output",
        "serve at 30 % of vLLM's saturation, small bf16: p99 TTFT",
        "serve at 30 % of vLLM's saturation, small bf16: p99 ITL",
    ]
    assert {row.goal for row in rows[-3:]} == {None}


def test_curves_hold_the_sweep_the_closed_loop_and_the_race_in_order():
    slow, fast = ({OURS: lap(times_ms=ms, output=10 * ms), SINGLE: lap(times_ms=2 * ms)} for ms in (1.0, 3.0))
    found = found_with(
        2.0, 4.0, (Point("concurrency", 1, slow), Point("fraction", 0.3, slow), Point("fraction", 0.9, fast))
    )
    (throughput,) = throughput_panels([found])
    assert throughput.curves == {"Dormouse": [(1, 10.0), (64, 300.0)], "vLLM": [(1, 100.0), (64, 200.0)]}
    ttft, itl = latency_panels([found])
    assert ttft.curves["Dormouse"] == [(pytest.approx(x), y) for x, y in ((6, 1.0), (14, 2.0), (18, 3.0))]
    assert itl.curves["vLLM"] == [(pytest.approx(x), y) for x, y in ((6, 2.0), (14, 4.0), (18, 6.0))]


def test_the_pictures_are_written_beside_the_rows(tmp_path):
    points = [Point("concurrency", 1, {OURS: lap(), SINGLE: lap()})]
    serve.draw_curves([found_with(points=points)], tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["serve-latency.svg", "serve-throughput.svg"]


def test_rows_that_a_run_does_not_have_stay(tmp_path):
    options, console = Options(out=tmp_path), Console(quiet=True)
    run("serve", lambda *_: [Row("front", 1.0, "µs"), Row("race", 2.0, "ms")], options, console)
    run("serve", lambda *_: [Row("race", 3.0, "ms")], options, console)
    rows = msgspec.json.decode((tmp_path / "serve.json").read_bytes())["rows"]
    assert {row["what"]: row["ours"] for row in rows} == {"front": 1.0, "race": 3.0}


@given(st.floats(1e-3, 1e6))
def test_ticks_are_few_and_reach_what_is_drawn(most):
    steps = ticks(most)
    assert steps[0] == 0
    assert steps[-2] < most * (1 + 1e-6)
    assert steps[-1] >= most * (1 - 1e-6)
    assert 2 <= len(steps) <= MOST_TICKS + 1


def test_every_point_is_drawn_where_it_belongs():
    doublings = Panel(
        "a <b>", {"one": [(1, 0.0), (4, 50.0), (16, 100.0)], "two": [(1, 100.0), (4, 0.0), (16, 0.0)]}, is_log=True
    )
    level = Panel("zero", {"one": [(2.0, 0.0)], "two": [(2.0, 0.0)]})
    picture = ET.fromstring(draw("title", [doublings, level, doublings]))
    width, height = map(float, picture.attrib["viewBox"].split()[2:])
    circles = [(float(circle.get("cx")), float(circle.get("cy"))) for circle in picture.iter(f"{SVG}circle")]
    assert len(circles) == 14
    assert all(0 < x < width and 0 < y < height for x, y in circles)
    (x1, y1), (x2, y2), (x3, y3) = circles[:3]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    words = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"a <b>", "title", "16", "100", "one", "two"} <= set(words)
    assert words.count("one") == 1


def test_streams_are_compared_by_their_median_repetition():
    through = [[Reply([1] * 9, 0.0, 1.0, seconds)] for seconds in (1.0, 2.0, 9.0)]
    inside = [[Reply([1] * 9, 0.0, 1.0, seconds)] for seconds in (1.0, 1.8, 1.8)]
    row = to_row(through, inside)
    assert (row.ours, row.peer, row.holds) == (4.5, 5.0, True)
    assert to_row([through[2]], inside).holds is False


def test_a_load_draws_one_prompt_more_to_warm_up():
    ask = Load(3, 2).ask("tiny", Side(OURS, []))
    assert len(ask.requests) == 2
    assert ask.warm_up not in ask.requests
    assert all(64 <= size <= 192 for request in ask.requests for size in (len(request.prompt), request.max_tokens))
