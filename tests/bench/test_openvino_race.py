"""Our engine beside OpenVINO: which of its ways counts, and requests that wait for a first one."""

import msgspec

from bench.helpers import Job
from bench.openvino_race import FIGURES, GENAI, OURS, STATIC
from bench.ours import Engine, settings_of
from bench.replies import Reply
from bench.workload import Request

FIRST, _, _, WIDE, SHARED = FIGURES


def laps(**seconds):
    """Return one repetition for each way of one reply with ten tokens, the first and the others in so many seconds."""
    ways = {"ours": OURS, "genai": GENAI, "static": STATIC}
    return {f"{ways[way]} bf16": [[Reply([1] * 10, 0.0, took, took + 1)]] for way, took in seconds.items()}


def test_openvino_counts_with_its_faster_way_of_each_figure():
    answered = laps(ours=1.0, genai=1.2, static=1.1)
    (first,), (wide,) = FIRST.rows("q05", answered), WIDE.rows("q05", answered)
    assert first.what == "time to first token W2, q05 bf16 beside OpenVINO's faster way"
    assert (round(first.ours), round(first.peer), first.holds) == (1000, 1100, True)
    assert (round(wide.ours, 2), round(wide.peer, 2), wide.holds) == (5.0, 4.76, False)


def test_a_shared_prefix_stands_beside_the_way_that_keeps_prefixes():
    (row,) = SHARED.rows("q05", laps(ours=1.0, genai=4.0))
    assert row.what == "W3 of 16, one first, q05 bf16 beside OpenVINO GenAI"
    assert (row.ours, row.peer, row.holds) == (5.0, 2.0, True)


def test_the_others_of_a_led_job_come_once_its_first_request_has_begun(tiny_model):
    settings = msgspec.structs.replace(settings_of(str(tiny_model), 1), kv_cache_memory_bytes=16 << 20)
    engine = Engine(settings)
    shared = list(range(3, 67))
    requests = tuple(Request(str(number), [*shared, 100 + number], 4) for number in range(3))
    first, *others = engine.run(Job(requests, led=True))
    assert all(first.first_s <= other.submitted_s < first.last_s for other in others)
    assert [other.cached_tokens for other in others] == [64, 64]
    at_once = engine.run(Job(requests))
    assert max(one.submitted_s for one in at_once) < min(one.first_s for one in at_once)
