"""Flags that say how long something may take."""

from __future__ import annotations

import pytest

from tests.worker.front.flags.kit import parse


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
@pytest.mark.parametrize(
    "flag",
    ["--default-timeout-seconds", "--max-timeout-seconds", "--engine-load-timeout", "--engine-command-timeout"],
)
def test_a_deadline_is_a_time_above_zero(capsys, flag, value):
    with pytest.raises(SystemExit):
        parse(f"{flag}={value}")
    assert flag in capsys.readouterr().err


def test_what_an_engine_may_take_is_documented_and_can_be_set():
    front, _ = parse()
    assert (front.engine_timeout_s, front.engine_load_timeout_s, front.engine_command_timeout_s) == (120, 1800, 300)
    front, _ = parse("--engine-timeout=5", "--engine-load-timeout=6", "--engine-command-timeout=7")
    assert (front.engine_timeout_s, front.engine_load_timeout_s, front.engine_command_timeout_s) == (5, 6, 7)


def test_the_default_deadline_is_at_most_the_longest_one(capsys):
    front, _ = parse("--default-timeout-seconds=7", "--max-timeout-seconds=7")
    assert (front.default_timeout_s, front.max_timeout_s) == (7, 7)
    with pytest.raises(SystemExit):
        parse("--default-timeout-seconds=8", "--max-timeout-seconds=7")
    error = capsys.readouterr().err
    assert [
        word for word in ("--default-timeout-seconds", "8", "--max-timeout-seconds", "7") if word not in error
    ] == []
