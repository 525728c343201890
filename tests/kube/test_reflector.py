"""The reflector keeps its copy equal to the server's objects over every kind of break."""

import asyncio
import random
from typing import Any

import pytest

from dormouse_kube.api import PODS
from dormouse_kube.errors import Gone, Unavailable
from dormouse_kube.reflector import Backoff, ObjectKey, Reflector
from dormouse_kube.testing import FakeKube


def pod(name: str, namespace: str = "a", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {}}


class Rig:
    """A fake server, a running reflector, and what it told."""

    def __init__(self, *namespaces: str, label_selector: str = "") -> None:
        self.kube = FakeKube()
        self.told: list[tuple[str, bool]] = []
        self.pauses: list[float] = []
        self.now_s = 0.0
        self.reflector = Reflector(
            self.kube,
            PODS,
            namespaces,
            label_selector=label_selector,
            on_change=lambda key, obj: self.told.append((key.name, obj is not None)),
            sleep=self._sleep,
            rng=random.Random(1),
            clock=lambda: self.now_s,
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def __aenter__(self) -> "Rig":
        self.task = asyncio.create_task(self.reflector.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds

    async def settle(self) -> None:
        """Let everything that can run do so."""
        for _ in range(50):
            await asyncio.sleep(0)

    def names(self) -> list[str]:
        return sorted(key.name for key in self.reflector.objects)


async def test_it_is_synced_after_the_first_list():
    async with Rig() as rig:
        assert not rig.reflector.synced.is_set()
        rig.kube.put(PODS, pod("one"))
        await rig.settle()
        assert rig.reflector.synced.is_set()
        assert rig.told == [("one", True)]
        assert repr(rig.reflector) == "Reflector(pods in all namespaces: 1, synced=True)"


async def test_changes_and_removals_are_told_in_order():
    async with Rig() as rig:
        await rig.settle()
        rig.kube.put(PODS, pod("one"))
        rig.kube.edit(PODS, "a", "one", lambda obj: obj["spec"].update(nodeName="n"))
        rig.kube.finish_deletion(PODS, "a", "one")
        await rig.settle()
        assert rig.told == [("one", True), ("one", True), ("one", False)]
        assert rig.names() == []


async def test_only_named_namespaces_are_looked_at_and_all_must_be_listed():
    async with Rig("a", "b") as rig:
        for namespace in ("a", "b", "c"):
            rig.kube.put(PODS, pod(f"in-{namespace}", namespace))
        await rig.settle()
        assert rig.names() == ["in-a", "in-b"]
        assert rig.reflector.synced.is_set()
        assert rig.reflector.get("a", "in-a") is not None
        assert ObjectKey("c", "in-c") not in rig.reflector.objects


async def test_an_object_that_leaves_the_selection_is_told_as_gone():
    async with Rig(label_selector="side=left") as rig:
        rig.kube.put(PODS, pod("one", side="left"))
        await rig.settle()
        rig.kube.edit(PODS, "a", "one", lambda obj: obj["metadata"].update(labels={"side": "right"}))
        await rig.settle()
        assert rig.told == [("one", True), ("one", False)]


async def test_what_changed_during_a_break_is_found_by_the_next_list():
    async with Rig() as rig:
        for name in ("stays", "changes", "goes"):
            rig.kube.put(PODS, pod(name))
        await rig.settle()
        rig.told.clear()
        rig.kube.fail("list", PODS, Unavailable("down"), times=3)
        rig.kube.end_watches(Unavailable("broken"))
        rig.kube.edit(PODS, "a", "changes", lambda obj: obj["spec"].update(nodeName="n"))
        rig.kube.finish_deletion(PODS, "a", "goes")
        rig.kube.compact()
        await rig.settle()
        assert sorted(rig.told) == [("changes", True), ("goes", False)]
        assert rig.names() == ["changes", "stays"]


async def test_a_watch_that_ends_is_continued_without_a_list():
    async with Rig() as rig:
        await rig.settle()
        rig.pass_s(1.0)
        rig.kube.end_watches()
        await rig.settle()
        rig.kube.put(PODS, pod("one"))
        await rig.settle()
        assert [call.verb for call in rig.kube.calls] == ["list", "watch", "watch"]
        assert rig.names() == ["one"]
        assert rig.pauses == []


async def test_watches_that_end_at_once_are_opened_again_with_growing_pauses_and_without_a_list():
    async with Rig() as rig:
        await rig.settle()
        for _ in range(5):
            rig.kube.end_watches()
            await rig.settle()
        assert [call.verb for call in rig.kube.calls] == ["list", *["watch"] * 6]
        assert len(rig.pauses) == 5
        assert rig.pauses[0] <= 0.2
        assert rig.pauses[-1] >= 1.6


@pytest.mark.parametrize("works", [lambda rig: rig.kube.put(PODS, pod("one")), lambda rig: rig.pass_s(1.0)])
async def test_a_watch_that_works_before_it_ends_makes_the_next_short_one_a_first_one(works):
    async with Rig() as rig:
        await rig.settle()
        for _ in range(3):
            rig.kube.end_watches()
            await rig.settle()
        works(rig)
        await rig.settle()
        rig.kube.end_watches()
        await rig.settle()
        assert len(rig.pauses) == 3, "it worked: no pause"
        rig.kube.end_watches()
        await rig.settle()
        assert rig.pauses[-1] <= 0.2 < rig.pauses[-2]


async def test_a_version_that_is_too_old_leads_to_a_new_list():
    async with Rig() as rig:
        await rig.settle()
        rig.kube.fail("watch", PODS, Gone("too old"))
        rig.kube.end_watches()
        await rig.settle()
        rig.kube.put(PODS, pod("one"))
        await rig.settle()
        assert [call.verb for call in rig.kube.calls] == ["list", "watch", "watch", "list", "watch"]
        assert rig.names() == ["one"]


async def test_an_outage_is_waited_out_with_growing_pauses_that_have_an_end():
    rig = Rig()
    rig.kube.fail("list", PODS, Unavailable("down"), times=12)
    async with rig:
        await rig.settle()
        await rig.settle()
        assert rig.reflector.synced.is_set()
    assert len(rig.pauses) == 12
    assert 0.1 <= rig.pauses[0] <= 0.2
    assert 5.0 <= rig.pauses[-1] <= 10.0


async def test_a_watch_that_told_something_makes_the_next_break_a_first_one():
    rig = Rig()
    rig.kube.fail("list", PODS, Unavailable("down"), times=6)
    async with rig:
        await rig.settle()
        rig.kube.put(PODS, pod("one"))
        await rig.settle()
        rig.kube.end_watches(Unavailable("cut"))
        await rig.settle()
    assert len(rig.pauses) == 7
    assert rig.pauses[-1] <= 0.2 < rig.pauses[-2]


async def test_the_server_decides_the_least_pause():
    rig = Rig()
    rig.kube.fail("list", PODS, Unavailable("busy", retry_after_s=7.0))
    async with rig:
        await rig.settle()
    assert rig.pauses == [7.0]


def test_a_pause_never_exceeds_its_maximum():
    backoff = Backoff(first_s=1.0, max_s=8.0)
    pauses = [backoff.delay_s(failures, random.Random(0)) for failures in (1, 2, 3, 4, 50, 5000)]
    assert all(pause <= 8.0 for pause in pauses)
    assert pauses[0] < pauses[2]
