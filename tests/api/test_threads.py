"""Threads that wait for their turn."""

from __future__ import annotations

import os
import threading

import pytest

from dormouse_api.threads import patient_threads


def policy_of_a_new_thread():
    """Return under which policy a thread runs that starts now."""
    found = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return found[0]


def test_threads_that_start_within_are_patient_and_those_after_are_not():
    before = os.sched_getscheduler(0)
    with patient_threads():
        assert policy_of_a_new_thread() == os.SCHED_BATCH
    assert (os.sched_getscheduler(0), policy_of_a_new_thread()) == (before, before)


def test_the_policy_is_as_before_after_an_error_too():
    before = os.sched_getscheduler(0)
    with pytest.raises(ValueError, match="no"), patient_threads():
        raise ValueError("no")
    assert os.sched_getscheduler(0) == before


def test_where_it_is_not_allowed_nothing_happens(monkeypatch):
    def refuse(*_):
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with patient_threads():
        assert policy_of_a_new_thread() == os.sched_getscheduler(0)
