"""A mutant is judged in a fork: it may hang, grow and crash, and only that is told of it."""

from __future__ import annotations

import os
import signal

import pytest

from tools.mutation_judge import KILLED, SURVIVED, TIMED_OUT, in_fork, selected

TESTS = ["tests/worker/engine", "tests/worker/front/answers", "tests/gateway/openai/test_tools.py"]


def grow():
    return SURVIVED, "x" * (1 << 42)


def crash():
    os.kill(os.getpid(), signal.SIGKILL)
    return SURVIVED, ""


def test_what_it_says_is_heard_whole():
    assert in_fork(lambda: (SURVIVED, "x" * 1_000_000), 60) == (SURVIVED, "x" * 1_000_000)
    assert in_fork(lambda: (KILLED, "a test"), 60) == (KILLED, "a test")


def test_what_hangs_grows_or_crashes_is_noticed():
    assert in_fork(lambda: (signal.pause(), ("",))[1], 0.05) == (TIMED_OUT, "")  # type: ignore[return-value]
    assert in_fork(grow, 60) == (KILLED, "")
    assert in_fork(crash, 60) == (-signal.SIGKILL, "")


@pytest.mark.parametrize(
    ("patterns", "tests"),
    [
        ([], TESTS),
        (["dormouse_worker.engine.swap.*"], TESTS[:1]),
        (["dormouse_worker.front.answers.*", "dormouse_gateway.openai.*"], TESTS[1:]),
        (["dormouse_worker.model.*"], TESTS[:2]),
        (["dormouse_operator.decide.*"], []),
    ],
)
def test_a_part_is_judged_by_the_tests_that_mirror_it(patterns, tests):
    assert selected(TESTS, patterns) == tests
