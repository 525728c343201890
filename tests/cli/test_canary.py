"""`dormouse canary`: what it writes, and what it says."""

from __future__ import annotations

import pytest

from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from tests.cli import kit


def with_canary(**canary):
    raw = kit.deployment()
    raw["spec"]["canary"] = {"of": "old", "weight": 10, **canary}
    return raw


def spec(fake):
    return fake.peek(INFERENCE_DEPLOYMENTS, "default", "tiny")["spec"]["canary"]


@pytest.mark.parametrize(
    ("options", "before", "after", "words"),
    [
        (("--weight", "25"), {}, {"weight": 25}, "tiny takes 25 % of the requests of old"),
        (("--promote",), {"paused": True}, {"weight": 100, "paused": False}, "tiny takes 100 % of the requests of old"),
        (("--abort",), {}, {"paused": True}, "tiny is paused: old has all of its requests"),
        (("--resume",), {"paused": True}, {"paused": False}, "tiny takes 10 % of the requests of old"),
        (("--weight", "0", "--resume"), {"paused": True}, {"weight": 0, "paused": False}, "takes 0 %"),
    ],
)
def test_an_order_writes_what_it_changes(dormouse, options, before, after, words):
    fake = kit.cluster(with_canary(**before))
    result = dormouse(fake, "canary", "tiny", *options)
    assert result.exit_code == 0
    assert spec(fake) == {"of": "old", "weight": 10, **before, **after}
    assert words in result.stdout


def test_without_an_option_it_says_where_the_canary_stands(dormouse):
    raw = with_canary()
    raw["status"]["canary"] = {"state": "Aborted", "message": "3 of its last 3 requests failed", "try": "x"}
    assert "tiny: Aborted: 3 of its last 3 requests failed" in dormouse(kit.cluster(raw), "canary", "tiny").stdout
    assert "tiny takes 10 % of the requests of old" in dormouse(kit.cluster(with_canary()), "canary", "tiny").stdout


def test_a_deployment_that_is_no_canary_is_told_what_makes_one(dormouse):
    result = dormouse(kit.cluster(kit.deployment()), "canary", "tiny", "--weight", "5")
    assert result.exit_code == 1
    assert "tiny is no canary: spec.canary.of" in result.output


@pytest.mark.parametrize("options", [("--abort", "--resume"), ("--abort", "--promote"), ("--promote", "--weight", "5")])
def test_orders_that_contradict_each_other_change_nothing(dormouse, options):
    fake = kit.cluster(with_canary())
    assert dormouse(fake, "canary", "tiny", *options).exit_code == 2
    assert spec(fake) == {"of": "old", "weight": 10}
