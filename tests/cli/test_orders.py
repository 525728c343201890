"""`dormouse sleep`, `wake`, `restart`: what they write, when they wait, how they end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from dormouse_api.names import ANNOTATION_WAKE
from dormouse_cli import orders
from dormouse_cli.cluster import Cluster
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.follow import Waiting, is_hopeless, news, serves, settled, sleeps, wait
from dormouse_cli.view import read
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Unavailable
from tests.cli import kit
from tests.waiting import until

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def stored(fake, name="tiny"):
    return fake.peek(INFERENCE_DEPLOYMENTS, "default", name)


def asleep(raw):
    """Make it sleep at the order's level."""
    raw["status"] |= {"phase": "Asleep", "readyReplicas": 0, "sleepingReplicas": 1}
    raw["status"]["observedGeneration"] = raw["metadata"].get("generation", 1)
    conditions = {one["type"]: one for one in raw["status"]["conditions"]}
    conditions["Asleep"] = kit.condition("Asleep", "True", "Asleep", "every worker sleeps")
    conditions["Available"] = kit.condition("Available", "False", "NoneServes")
    raw["status"]["conditions"] = list(conditions.values())


def awake(raw):
    raw["status"] |= {"phase": "Active", "readyReplicas": 1, "sleepingReplicas": 0}
    raw["status"]["observedGeneration"] = raw["metadata"].get("generation", 1)
    raw["status"]["conditions"] = kit.serving_conditions()


def test_sleep_writes_the_order_and_nothing_else(dormouse):
    fake = kit.cluster(kit.deployment())
    before = stored(fake)["spec"]
    result = dormouse(fake, "sleep", "tiny", "--no-wait")
    assert result.exit_code == 0
    assert stored(fake)["spec"] == before | {"lifecycle": {"desiredState": "Asleep", "sleepLevel": 1}}
    assert "requests are refused until dormouse wake" in result.stdout


@pytest.mark.parametrize(
    ("options", "lifecycle"),
    [(("--level", "2"), {"desiredState": "Asleep", "sleepLevel": 2}), (("--zero",), {"desiredState": "Zero"})],
)
def test_level_and_zero_are_part_of_the_order(dormouse, options, lifecycle):
    fake = kit.cluster(kit.deployment())
    dormouse(fake, "sleep", "tiny", "--no-wait", *options)
    assert stored(fake)["spec"]["lifecycle"].items() >= lifecycle.items()


def test_a_level_that_does_not_exist_is_refused(dormouse):
    assert dormouse(kit.cluster(kit.deployment()), "sleep", "tiny", "--level", "4").exit_code == 2


def test_an_order_that_stands_already_is_not_written_again(dormouse):
    fake = kit.cluster(kit.deployment(lifecycle={"desiredState": "Asleep", "sleepLevel": 1}))
    result = dormouse(fake, "sleep", "tiny", "--no-wait")
    assert "(it is so already)" in result.stdout
    assert fake.mutations() == []


def test_what_is_off_can_neither_sleep_nor_wake(dormouse):
    fake = kit.cluster(kit.deployment(replicas=0))
    for command in ("sleep", "wake"):
        result = dormouse(fake, command, "tiny")
        assert (result.exit_code, "spec.replicas is 0" in result.stderr) == (1, True)
    assert fake.mutations() == []


def test_wake_takes_an_order_to_sleep_back():
    order = orders.wake(kit.deployment(lifecycle={"desiredState": "Asleep"}), NOW, keep_awake=False)
    assert order.change == {"spec": {"lifecycle": {"desiredState": "Auto"}}}


def test_wake_writes_the_wish_of_a_request_where_it_sleeps_by_itself():
    raw = kit.deployment()
    raw["status"]["lifecycle"] = {"rung": "Level1", "since": "2026-11-21T11:00:00Z"}
    order = orders.wake(raw, NOW, keep_awake=False)
    assert order.change == {"metadata": {"annotations": {ANNOTATION_WAKE: "2026-11-21T12:00:00Z"}}}


def test_the_wish_is_newer_than_the_sleep_though_our_clock_is_behind():
    raw = kit.deployment()
    raw["status"]["lifecycle"] = {"rung": "Zero", "since": "2026-11-21T13:00:00Z"}
    change = orders.wake(raw, NOW, keep_awake=False).change
    assert change["metadata"]["annotations"][ANNOTATION_WAKE] == "2026-11-21T13:00:00.000001Z"


def test_wake_stay_orders_it_to_serve_always():
    raw = kit.deployment()
    raw["status"]["lifecycle"] = {"rung": "Level1", "since": "2026-11-21T11:00:00Z"}
    assert orders.wake(raw, NOW, keep_awake=True).change == {"spec": {"lifecycle": {"desiredState": "Active"}}}


def test_what_serves_needs_no_wake():
    assert orders.wake(kit.deployment(), NOW, keep_awake=False).change == {}


def test_restart_changes_the_pods_template_only(dormouse):
    fake = kit.cluster(kit.deployment())
    before = stored(fake)["spec"]
    assert dormouse(fake, "restart", "tiny", "--no-wait").exit_code == 0
    after = stored(fake)["spec"]
    assert list(after.pop("template")["metadata"]["annotations"]) == [orders.ANNOTATION_RESTART]
    assert after == before


# --- waiting ---


class Told:
    """Remembers what a wait told."""

    def __init__(self):
        self.types = []

    def __call__(self, _elapsed_s, condition):
        self.types.append((condition.type, condition.status))


def waiting(goal, *, told=None, pause_s=1.0):
    return Waiting(goal, 30.0, told or Told(), lambda: 0.0, pause_s)


async def test_a_wait_tells_each_condition_that_changes_and_ends_with_the_goal():
    fake: Cluster = kit.cluster(kit.deployment(lifecycle={"desiredState": "Asleep"}))
    told = Told()
    task = asyncio.ensure_future(wait(fake, "default", "tiny", waiting(sleeps, told=told)))
    await until(lambda: any(call.verb == "watch" for call in fake.calls))
    assert told.types == [], "what was so before the order is no news"
    fake.edit(INFERENCE_DEPLOYMENTS, "default", "tiny", asleep)
    view = await task
    assert view.phase == "Asleep"
    assert told.types == [("Asleep", "True"), ("Available", "False")]


async def test_a_wait_goes_on_after_a_watch_that_broke():
    fake = kit.cluster(kit.deployment(lifecycle={"desiredState": "Asleep"}))
    fake.fail("watch", INFERENCE_DEPLOYMENTS, Unavailable("broken"))
    told = Told()
    task = asyncio.ensure_future(wait(fake, "default", "tiny", waiting(sleeps, told=told, pause_s=0.0)))
    await until(lambda: sum(call.verb == "watch" for call in fake.calls) == 2)
    fake.edit(INFERENCE_DEPLOYMENTS, "default", "tiny", asleep)
    assert (await task).phase == "Asleep"


def test_a_wait_that_takes_too_long_says_what_is_missing_and_its_remedy(dormouse):
    raw = kit.deployment(lifecycle={"desiredState": "Asleep"})
    asleep(raw)
    raw["status"]["conditions"].append(kit.condition("Degraded", "True", "WakeRefused", "1 GiB is missing"))
    raw["status"]["conditions"] = [one for one in raw["status"]["conditions"] if one["reason"] != "AsExpected"]
    result = dormouse(kit.cluster(raw), "wake", "tiny", "--timeout", "0.05")
    assert result.exit_code == 6
    assert result.stderr == (
        "error: not done within 0.05 s: Degraded is True: WakeRefused: 1 GiB is missing"
        " (what to do: free the memory that the message names; it is tried again)\n"
    )


async def test_a_wait_for_something_that_is_deleted_ends():
    fake = kit.cluster(kit.deployment(lifecycle={"desiredState": "Asleep"}))
    task = asyncio.ensure_future(wait(fake, "default", "tiny", waiting(sleeps)))
    await until(lambda: any(call.verb == "watch" for call in fake.calls))
    await fake.delete(INFERENCE_DEPLOYMENTS, "default", "tiny")
    with pytest.raises(CommandFailed, match="was deleted meanwhile") as caught:
        await task
    assert caught.value.code is ExitCode.NOT_FOUND


async def test_a_spec_that_can_not_be_served_ends_the_wait_at_once():
    raw = kit.deployment()
    raw["status"]["conditions"] = [kit.condition("Accepted", "False", "InvalidSpec", "spec.model.uri is odd")]
    raw["status"]["phase"] = "Rejected"
    with pytest.raises(CommandFailed, match=r"InvalidSpec: spec.model.uri is odd .what to do: correct the field"):
        await wait(kit.cluster(raw), "default", "tiny", waiting(serves))


def view_of(change=lambda _: None, **spec):
    raw = kit.deployment(**spec)
    raw["metadata"]["generation"] = 1
    change(raw)
    return read(raw)


def test_an_old_status_is_never_a_goal():
    def older(raw):
        raw["metadata"]["generation"] = 2

    assert serves(view_of())
    assert not serves(view_of(older))
    assert not settled(view_of(older))
    assert not is_hopeless(view_of(older))


def test_a_roll_out_under_way_is_not_done():
    def rolling(raw):
        raw["status"]["conditions"][6] = kit.condition("Progressing", "True", "Surging")

    assert not serves(view_of(rolling))


def test_a_roll_out_that_stopped_is_hopeless():
    def stopped(raw):
        raw["status"]["conditions"][6] = kit.condition("Progressing", "False", "ProgressDeadlineExceeded")

    assert is_hopeless(view_of(stopped))
    assert not is_hopeless(view_of())


@pytest.mark.parametrize(
    ("spec", "status", "done"),
    [
        ({"replicas": 0}, {"phase": "Off"}, True),
        ({"replicas": 0}, {"phase": "Active"}, False),
        ({"lifecycle": {"desiredState": "Zero"}}, {"phase": "Zero"}, True),
        ({"lifecycle": {"desiredState": "Zero"}}, {"phase": "Active"}, False),
        ({}, {"readyReplicas": 0}, False),
        ({}, {"readyReplicas": 0, "lifecycle": {"rung": "Level1"}}, True),
    ],
)
def test_settled_is_what_the_spec_asks_for(spec, status, done):
    assert settled(view_of(lambda raw: raw["status"].update(status), **spec)) is done


def test_what_only_sums_up_is_told_when_it_flips():
    def reason_changed(raw):
        raw["status"]["conditions"][7] = kit.condition("Ready", "True", "Serving", "a roll-out is going on")
        raw["status"]["conditions"][1] = kit.condition("Scheduled", "True", "Scheduled", "2 of 2 pods have a node")

    assert [one.type for one in news(view_of(), view_of(reason_changed))] == ["Scheduled"]


def test_news_are_the_conditions_that_changed():
    before, after = view_of(), view_of(asleep)
    assert [one.type for one in news(before, after)] == ["Asleep", "Available"]
    assert list(news(after, after)) == []
    assert "Asleep" not in [one.type for one in news(None, before)], "what only begins as not done is no news"
