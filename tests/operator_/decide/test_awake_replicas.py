"""How many replicas are woken: one, and more as the load asks for, never fewer than there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide.awake_replicas import measures_of, wanted_awake
from dormouse_operator.model import Activity, Engine, Scaling
from dormouse_operator.testing.nouns import a_deployment


def load(outstanding, *, usage=0.0, workers=1):
    facts = {"quiet_s": 0.0, "awake_workers": workers, "running": 0, "waiting": 0, "mean_kv_cache_usage": usage}
    return Activity(in_flight=outstanding, held=0, **facts)


TEN = Scaling(max_replicas=8, target_outstanding=10)


@pytest.mark.parametrize(
    ("least", "outstanding", "wanted"),
    [(1, 0, 1), (1, 1, 1), (1, 11, 1), (1, 12, 2), (1, 25, 3), (1, 35, None), (1, 1000, None), (3, 0, 3), (3, 25, 3)],
)
def test_so_many_of_four_replicas_are_wanted_awake(least, outstanding, wanted):
    assert wanted_awake(least, 4, TEN, load(outstanding)) == wanted


def test_a_load_that_is_not_known_asks_for_no_more_and_a_single_replica_is_all():
    assert wanted_awake(1, 4, TEN, None) == 1
    assert wanted_awake(1, 1, TEN, None) is None
    assert wanted_awake(2, 1, TEN, None) is None


def test_full_caches_ask_for_more_too():
    by_usage = Scaling(max_replicas=8, target_kv_usage=0.5)
    assert wanted_awake(1, 4, by_usage, load(1, usage=0.9)) == 2


@pytest.mark.parametrize(("num_seqs", "target"), [(None, 32), (64, 32), (8, 4), (1, 1)])
def test_without_a_measure_a_replica_is_to_have_half_of_what_it_can_run_at_once(num_seqs, target):
    deployment = a_deployment(replicas=4, engine=Engine(device="cpu", max_num_seqs=num_seqs))
    assert measures_of(deployment) == Scaling(max_replicas=4, target_outstanding=target)


def test_the_scaler_s_measures_count_where_there_are_any():
    assert measures_of(a_deployment(scaling=TEN)) is TEN
    assert measures_of(a_deployment(replicas=0)).max_replicas == 1


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 200))
def test_it_is_between_what_there_is_and_all_and_asking_twice_changes_nothing(least, replicas, outstanding):
    wanted = wanted_awake(least, replicas, TEN, load(outstanding))
    if wanted is None:
        assert least >= replicas or outstanding > 0
    else:
        assert least <= wanted < replicas
        assert wanted_awake(wanted, replicas, TEN, load(outstanding)) == wanted
