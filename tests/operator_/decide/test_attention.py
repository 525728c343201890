"""Available, SleepVerified, Degraded: whether somebody serves, whether a sleep was one, whether somebody must act."""

from __future__ import annotations

import pytest

from dormouse_operator.decide.conditions import degraded, sleep_verified
from dormouse_operator.decide.conditions.all import evaluate_all
from dormouse_operator.decide.findings import find
from dormouse_operator.model import Condition, Lifecycle, WorkerState
from dormouse_operator.testing.nouns import a_deployment, a_pod, a_report, a_situation, a_worker, but, recorded

S = WorkerState
LIMIT = sleep_verified.RESIDUE_LIMIT_BYTES


def of(seen, type_):
    """Return one of all conditions."""
    return evaluate_all(seen, find(seen))[type_]


def test_one_replica_that_serves_makes_it_available():
    condition = of(a_situation(a_worker(), a_worker(S.LOADING)), "Available")
    assert (condition.status, condition.reason, condition.message) == ("True", "Serving", "1 of 2 replicas serve")


@pytest.mark.parametrize(
    ("deployment", "workers", "reason"),
    [
        (a_deployment(), [a_worker(S.LOADING)], "NoneServes"),
        (a_deployment(lifecycle=Lifecycle("Asleep", 60)), [a_worker(S.ASLEEP)], "Asleep"),
        (a_deployment(replicas=0), [], "NoReplicas"),
        (a_deployment(replicas=0, lifecycle=Lifecycle("Zero", 60)), [], "Zero"),
    ],
)
def test_why_none_is_available(deployment, workers, reason):
    condition = of(a_situation(*workers, deployment=deployment), "Available")
    assert (condition.status, condition.reason, condition.is_failure) == ("False", reason, False)


@pytest.mark.parametrize(("residue", "status"), [(LIMIT, "True"), (LIMIT + 1, "False")])
def test_a_sleep_is_verified_up_to_the_residue_that_is_allowed(residue, status):
    workers = [a_worker(S.ASLEEP, residual_bytes=count) for count in (1, residue)]
    condition = sleep_verified.evaluate(a_situation(*workers))
    assert condition.status == status
    assert "tiny-abcd1234-1" in condition.message


def test_awake_there_is_nothing_to_verify():
    assert sleep_verified.evaluate(a_situation(a_worker())).status == "Unknown"


def test_degraded_repeats_the_first_failure():
    failures = [
        Condition("A", "False", "One", "a", is_failure=True),
        Condition("B", "False", "Two", "b", is_failure=True),
    ]
    condition = degraded.evaluate(a_situation(a_worker()), [Condition("C", "True", "Fine", ""), *failures])
    assert (condition.status, condition.reason, condition.message) == ("True", "One", "a")


def test_fields_that_the_api_server_does_not_keep_are_named_and_what_to_apply():
    condition = degraded.evaluate(but(a_situation(a_worker()), dropped=("usage", "cost")), [])
    assert (condition.status, condition.reason) == ("True", "DefinitionOutdated")
    assert condition.message.startswith("the API server does not keep status.usage, status.cost: its definition of")


def test_what_the_api_server_does_not_allow_comes_first():
    seen = but(a_situation(a_worker()), forbidden="cannot patch resource pods", name_owner="team/older")
    condition = degraded.evaluate(seen, [Condition("A", "False", "One", "a", is_failure=True)])
    assert (condition.reason, condition.message) == (
        "Forbidden",
        "the API server does not allow it: cannot patch resource pods",
    )


def test_a_taken_name_is_told_with_its_owner_and_its_remedy():
    condition = of(
        but(a_situation(a_worker(), deployment=a_deployment(recorded=recorded(2000))), name_owner="a/b"), "Degraded"
    )
    assert condition.reason == "NameTaken"
    assert condition.message == (
        "a/b has the model name 'tiny', or had it until lately; this one answers to team/tiny only. "
        "Set another spec.model.name"
    )


def test_when_all_is_well_nothing_needs_attention():
    condition = of(a_situation(a_worker(), deployment=a_deployment(recorded=recorded(2000))), "Degraded")
    assert (condition.status, condition.reason, condition.is_failure) == ("False", "AsExpected", False)


def test_an_impossible_report_is_named_with_pod_value_and_limit():
    condition = of(a_situation(a_worker(S.PROFILED, report=a_report(-3))), "MemoryProfiled")
    assert condition.reason == "ReportOutOfBounds"
    assert condition.message == "pod tiny-abcd1234-0: numGpuBlocks is -3; possible are 0 to 2147483647"


def test_blocks_of_another_size_are_named():
    other = a_worker(S.PROFILED, report=a_report(block_size=32))
    condition = of(a_situation(a_worker(), other), "BlocksAgreed")
    assert (condition.reason, condition.is_failure) == ("BlockSizeDiffers", True)
    assert condition.message == "pod tiny-abcd1234-1 reports blocks of 32 tokens, the others of 16"


def test_an_agreement_names_who_has_not_reported():
    pods = (a_pod(0), a_pod(1))
    seen = a_situation(a_worker(), None, pods=pods, deployment=a_deployment(replicas=2, recorded=recorded(2000)))
    assert (
        of(seen, "BlocksAgreed").message
        == "blocks agreed: 2000, as pod tiny-abcd1234-0 reported; still without a report: tiny-abcd1234-1"
    )


def test_an_engine_without_levels_1_and_2_says_what_puts_it_to_sleep():
    condition = of(a_situation(a_worker(sleep_levels=(3,))), "Asleep")
    assert (condition.status, condition.reason) == ("False", "Awake")
    assert condition.message.endswith("; its worker claims no sleep of level 1 and 2")
