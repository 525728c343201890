"""The arithmetic of `dormouse bench`: arrivals, prompts, percentiles, goodput, and whose lateness counts."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_cli.load import figures, show
from dormouse_cli.load.figures import BadFigure, Run, Seen
from dormouse_cli.load.plan import BadPlan, Load, Vocabulary, arrivals, prompts

WORDS = Vocabulary(100, frozenset({1, 2}), 64)
TIMES = st.floats(0, 1000, allow_nan=False)


def load(**changes):
    known = {
        "num_prompts": 5,
        "rate": 10.0,
        "input_len": 8,
        "output_len": 4,
        "seed": 0,
        "warmups": 1,
        "max_concurrency": 10,
    }
    return Load(**known | changes)


def seen(*token_s, due=0.0, ready=None, sent=None, tokens=None, **more):
    """Return a request whose answer came whole."""
    ready = due if ready is None else ready
    sent = ready if sent is None else sent
    return Seen(due, ready, sent, list(token_s), 10, tokens or len(token_s), is_done=True, **more)


def told(*requests, duration=10.0, metrics=figures.METRICS, percents=(50.0, 99.0), limits=None, **run):
    return figures.results(Run(requests, duration, **run), metrics=metrics, percents=percents, limits_ms=limits or {})


# --- when and what ---


@given(st.integers(1, 300), st.floats(0.01, 1e4), st.integers(0, 2**64))
def test_arrivals_are_the_same_for_the_same_seed_begin_at_once_and_never_go_back(count, rate, seed):
    due_s = arrivals(count, rate, seed)
    assert due_s == arrivals(count, rate, seed)
    assert (len(due_s), due_s[0]) == (count, 0.0)
    assert due_s == sorted(due_s)


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_another_rate_of_the_same_seed_only_stretches_the_times(rate, other):
    stretched = [time * rate / other for time in arrivals(50, rate, 3)]
    assert arrivals(50, other, 3) == pytest.approx(stretched)


def test_gaps_are_those_of_a_poisson_process_of_this_rate():
    due_s = arrivals(20_001, 4.0, 0)
    gaps = [later - before for before, later in pairwise(due_s)]
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.03), "an exponential's deviation is its mean"
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.02)


def test_another_seed_has_other_arrivals_and_other_prompts():
    assert arrivals(5, 1.0, 0) != arrivals(5, 1.0, 1)
    assert prompts(load(seed=0), WORDS) != prompts(load(seed=1), WORDS)


def test_without_a_rate_everything_is_due_at_once():
    assert arrivals(3, math.inf, 0) == [0.0, 0.0, 0.0]


@given(st.integers(1, 20), st.integers(0, 3), st.integers(1, 60))
def test_prompts_have_the_length_asked_for_and_no_end_in_them(count, warmups, length):
    made = prompts(load(num_prompts=count, warmups=warmups, input_len=length), WORDS)
    assert [len(tokens) for tokens in made] == [length] * (count + warmups)
    assert all(token < 100 and token not in WORDS.ends for tokens in made for token in tokens)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (Vocabulary(100, (), 11), "--random-input-len 8 and --random-output-len 4 make 12 tokens; .* at most 11"),
        (Vocabulary(2, (0, 1), 0), "a vocabulary of 2 tokens"),
        (Vocabulary(0, (), 0), "a vocabulary of 0 tokens"),
    ],
)
def test_a_load_that_the_model_can_not_take_is_named(words, message):
    with pytest.raises(BadPlan, match=message):
        prompts(load(), words)
    assert prompts(load(), Vocabulary(100, (), 12)), "what just fits is taken"


# --- one request ---


@pytest.mark.parametrize(
    ("one", "ttft", "tpot", "itl", "e2el"),
    [
        (seen(), None, None, [], None),
        (seen(1.0), 1.0, None, [], 1.0),
        (seen(1.0, 1.5, 2.5), 1.0, 0.75, [0.5, 1.0], 2.5),
        (seen(1.0, 2.0, tokens=5), 1.0, 0.25, [1.0], 2.0),  # a message may bring several tokens
        (seen(1.0, tokens=3), 1.0, None, [], 1.0),
        (seen(9.0, 10.0, due=1.0, ready=3.0, sent=8.0), 1.0, 1.0, [1.0], 2.0),  # its own time begins when it is sent
    ],
)
def test_the_times_of_a_request_begin_when_it_is_sent(one, ttft, tpot, itl, e2el):
    assert (one.ttft_s, one.tpot_s, one.itl_s, one.e2el_s) == (ttft, tpot, itl, e2el)


@given(TIMES, TIMES, st.lists(st.floats(0.001, 10), min_size=1))
def test_the_clients_own_lateness_moves_its_own_figures_only(late, held, gaps):
    punctual = seen(*(sum(gaps[: n + 1]) for n in range(len(gaps))))
    start = late + held
    other = seen(*(start + time for time in punctual.token_s), ready=late, sent=start)
    ours, theirs = told(punctual), told(other)
    for metric in figures.METRICS:
        key = f"mean_{metric}_ms"
        assert ours[key] == theirs[key] == None or ours[key] == pytest.approx(theirs[key], abs=1e-6)  # noqa: E711
    assert theirs["client"]["mean_late_ms"] == pytest.approx(1e3 * late)
    assert theirs["client"]["mean_held_back_ms"] == pytest.approx(1e3 * held, abs=1e-6)


# --- all of them ---


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5], 99, 5),
        ([1, 2], 50, 1.5),
        ([4, 1, 3, 2], 0, 1),
        ([4, 1, 3, 2], 100, 4),
        ([0, 10], 90, 9),
        (range(101), 99, 99),
    ],
)
def test_percentiles_are_linear_between_the_nearest(values, percent, expected):
    assert figures.percentile(list(values), percent) == pytest.approx(expected)


def test_a_percentile_of_nothing_is_no_number():
    assert math.isnan(figures.percentile([], 50))


@given(st.lists(TIMES, min_size=1), st.floats(0, 100), st.floats(0, 100))
def test_percentiles_lie_within_the_values_and_rise(values, one, other):
    low, high = sorted((one, other))
    slack = 1e-9
    assert min(values) - slack <= figures.percentile(values, low) <= figures.percentile(values, high) + slack
    assert figures.percentile(values, high) <= max(values) + slack
    assert figures.percentile(values, 50) == pytest.approx(statistics.median(values))


@given(
    st.lists(
        st.builds(
            lambda gaps, sent, done, error: Seen(
                0.0,
                0.0,
                sent,
                [sum(gaps[: n + 1]) for n in range(len(gaps))],
                1,
                len(gaps),
                is_done=done and not error and not math.isnan(sent),
                error=error if not math.isnan(sent) else "",
            ),
            st.lists(st.floats(0.001, 1), max_size=4),
            st.sampled_from([0.0, math.nan]),
            st.booleans(),
            st.sampled_from(["", "UNAVAILABLE", "INTERNAL"]),
        ),
        max_size=20,
    )
)
def test_every_request_is_counted_once_and_only_whole_answers_have_figures(requests):
    result = told(*requests, limits={"ttft": 1e9})
    counts = [result[name] for name in ("completed", "failed", "unfinished", "not_sent")]
    assert sum(counts) == len(requests)
    assert min(counts) >= 0
    assert sum(result["errors"].values()) == result["failed"]
    assert result["total_output_tokens"] == sum(one.output_tokens for one in requests if one.is_good)
    assert result["request_goodput"] == result["request_throughput"], "a limit that nobody breaks"


def test_throughput_is_over_the_whole_run():
    result = told(seen(1.0, 2.0), seen(3.0), Seen(0.0, 0.0, 0.0, [1.0], error="INTERNAL", words="id 7"), duration=4.0)
    assert (result["request_throughput"], result["output_throughput"]) == (0.5, 0.75)
    assert result["total_token_throughput"] == (20 + 3) / 4
    assert (result["errors"], result["error_words"]) == ({"INTERNAL": 1}, {"INTERNAL": "id 7"})


def test_tokens_that_come_together_tell_of_drafts():
    together = Seen(0.0, 0.0, 0.0, [1.0, 2.0], input_tokens=1, output_tokens=9, is_done=True)
    assert told(together, Seen(0.0, 0.0, 0.0, [1.0], output_tokens=8, error="INTERNAL"))["tokens_per_message"] == 4.5
    assert told(duration=0.0)["tokens_per_message"] == 0


def test_the_share_of_drafts_that_were_taken_is_told_where_there_were_any():
    drafted = Seen(0.0, 0.0, 0.0, [1.0], output_tokens=9, draft_tokens=8, accepted_draft_tokens=5, is_done=True)
    plain = Seen(0.0, 0.0, 0.0, [1.0], output_tokens=9, is_done=True)
    failed = Seen(0.0, 0.0, 0.0, [1.0], draft_tokens=90, error="INTERNAL")
    result = told(drafted, plain, failed)
    assert result["draft_acceptance"] == 5 / 8
    assert ("drafts taken", "0.62 of the tokens proposed") in show.facts(result)
    assert "draft_acceptance" not in told(plain, failed)


def test_nothing_at_all_has_no_figures_and_breaks_nothing():
    result = told(duration=0.0)
    assert (result["request_throughput"], result["mean_ttft_ms"], result["p99_e2el_ms"]) == (0.0, None, None)


@pytest.mark.parametrize(
    ("limits", "within"),
    [
        ({"ttft": 1000}, 2),
        ({"ttft": 999}, 0),
        ({"tpot": 400}, 1),
        ({"e2el": 1500}, 2),
        ({"ttft": 1000, "e2el": 1200}, 1),
    ],
)
def test_goodput_counts_requests_that_keep_every_limit(limits, within):
    requests = [seen(1.0, 1.5), seen(1.0), Seen(0.0, 0.0, 0.0, [0.1], error="INTERNAL")]
    assert told(*requests, duration=1.0, limits=limits)["request_goodput"] == within


@given(st.lists(st.floats(0.001, 5), min_size=1, max_size=10), st.floats(1, 5000), st.floats(1, 5000))
def test_a_wider_limit_never_lowers_the_goodput(times, one, other):
    requests = [seen(time) for time in times]
    low, high = (told(*requests, limits={"ttft": limit})["request_goodput"] for limit in sorted((one, other)))
    assert low <= high


# --- options ---


def test_lists_and_limits_are_read():
    assert figures.parse_metrics("ttft, itl,ttft") == ["ttft", "itl"]
    assert figures.parse_percents("50,99.9") == [50.0, 99.9]
    assert figures.parse_limits(["ttft:500 tpot:50", "e2el:9.5"]) == {"ttft": 500, "tpot": 50, "e2el": 9.5}


@pytest.mark.parametrize(
    ("parse", "value", "words"),
    [
        (
            figures.parse_metrics,
            "ttft,speed",
            "--percentile-metrics is 'ttft,speed'; allowed are ttft, tpot, itl, e2el",
        ),
        (figures.parse_metrics, " ", "--percentile-metrics is ' '"),
        (figures.parse_percents, "50,much", "--metric-percentiles is '50,much'; allowed are numbers from 0 to 100"),
        (figures.parse_percents, "101", "--metric-percentiles is '101'"),
        (figures.parse_percents, "nan", "--metric-percentiles is 'nan'"),
        (figures.parse_limits, ["ttft"], "--goodput is 'ttft'; allowed is METRIC:MS"),
        (figures.parse_limits, ["itl:5"], "--goodput is 'itl:5'"),
        (figures.parse_limits, ["ttft:0"], "--goodput is 'ttft:0'"),
        (figures.parse_limits, ["ttft:nan"], "--goodput is 'ttft:nan'"),
        (figures.parse_limits, ["e2el:soon"], "--goodput is 'e2el:soon'"),
    ],
)
def test_what_can_not_be_told_is_named_with_what_is_allowed(parse, value, words):
    with pytest.raises(BadFigure) as caught:
        parse(value)
    assert str(caught.value).startswith(words)


def test_lines_have_every_figure_and_a_dash_where_there_is_none():
    result = told(seen(0.25), duration=2.0, limits={"ttft": 300}, metrics=["ttft", "tpot"])
    assert ("goodput", "0.50 requests/s") in show.facts(result)
    heading, rows = show.table(result, ["ttft", "tpot"], [50.0, 99.0])
    assert heading == ["", "mean", "median", "p50", "p99"]
    assert rows[:2] == [["TTFT (ms)", *["250.00"] * 4], ["TPOT (ms)", *["-"] * 4]]
    assert [row[0] for row in rows[2:]] == ["client: late (ms)", "client: held back (ms)", "client: loop lag (ms)"]
