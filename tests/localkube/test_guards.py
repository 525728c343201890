"""Copies follow the API server, and a table is loaded where it differs from the one that is there."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from localkube import guards
from localkube.errors import ApiError, HostError
from localkube.guards import NAMESPACES, PODS, POLICIES, Copies, Guards
from localkube.kubeapi import read_events
from tests.localkube.cases import raw_pod, raw_policy

RED = {"metadata": {"name": "red", "uid": "red", "labels": {"team": "red"}}}


class FakeApi:
    """Lists, and the events after each."""

    def __init__(self) -> None:
        self.lists: dict[str, list[Any]] = {
            PODS: [raw_pod("a", "10.0.0.1")],
            NAMESPACES: [RED],
            POLICIES: [raw_policy(ingress=[])],
        }
        self.events: dict[str, list[Any]] = {}
        self.versions: list[str] = []

    def get(self, path: str) -> Any:
        return {"metadata": {"resourceVersion": "7"}, "items": list(self.lists[path])}

    def watch(self, path: str, *, timeout_s: int, version: str) -> Any:
        assert timeout_s > 0
        self.versions.append(version)
        yield from self.events.pop(path, [])


class Loader:
    """Takes tables as a node would; fails as often as a test says."""

    def __init__(self) -> None:
        self.loaded: list[tuple[guards.Place, str]] = []
        self.failures = 0

    def __call__(self, place: guards.Place, text: str) -> None:
        if self.failures:
            self.failures -= 1
            raise HostError("nft: no")
        self.loaded.append((place, text))


@pytest.fixture
def api():
    return FakeApi()


@pytest.fixture
def loader():
    return Loader()


@pytest.fixture
def changed():
    return threading.Event()


def made(api, loader, changed, places=((),)):
    return Guards(api, load=loader, places=lambda: list(places), changed=changed)


def follow_all(subject):
    for copies in subject.copies:
        copies.follow()


def test_nothing_is_loaded_before_everything_was_listed(api, loader, changed):
    subject = made(api, loader, changed)
    subject.pods.follow()
    subject.namespaces.follow()
    assert not subject.reconcile()
    subject.policies.follow()
    assert subject.reconcile()
    ((place, text),) = loader.loaded
    assert place == ()
    assert "10.0.0.1 : jump ingress-0" in text
    assert api.versions == ["7", "7", "7"], "what comes after the list"


def test_a_table_is_loaded_again_only_when_it_changed(api, loader, changed):
    subject = made(api, loader, changed)
    follow_all(subject)
    subject.reconcile()
    subject.reconcile()
    assert len(loader.loaded) == 1
    api.lists[PODS].append(raw_pod("b", "10.0.0.2"))
    follow_all(subject)
    subject.reconcile()
    assert "10.0.0.2 : jump ingress-0" in loader.loaded[-1][1]
    assert len(loader.loaded) == 2


def test_each_node_gets_the_table_also_one_that_comes_later(api, loader, changed):
    places = [()]
    subject = Guards(api, load=loader, places=lambda: places, changed=changed)
    follow_all(subject)
    subject.reconcile()
    places.append(("nsenter", "--net=x", "--"))
    subject.reconcile()
    assert [place for place, _ in loader.loaded] == places


def test_a_table_that_could_not_be_loaded_is_loaded_later(api, loader, changed):
    subject = made(api, loader, changed)
    follow_all(subject)
    loader.failures = 1
    with pytest.raises(HostError):
        subject.reconcile()
    assert subject.reconcile()
    assert len(loader.loaded) == 1


def test_events_change_the_copies_and_those_that_are_no_news_wake_nobody(api, changed):
    copies = Copies(api, PODS, guards.parse_pod, changed)
    more = raw_pod("b", "10.0.0.2")
    api.events[PODS] = [{"type": "ADDED", "object": more}]
    copies.follow()
    assert {pod.name for pod in copies.items.values()} == {"a"} | {"b"}
    api.lists[PODS].append(more)
    changed.clear()
    restarted = {**more, "status": {**more["status"], "conditions": ["some"]}}
    api.events[PODS] = [{"type": "MODIFIED", "object": restarted}]
    copies.follow()
    assert not changed.is_set()
    api.events[PODS] = [{"type": "DELETED", "object": more}]
    copies.follow()
    assert changed.is_set()
    assert [pod.name for pod in copies.items.values()] == ["a"]


def test_an_empty_list_is_news_once(api, changed):
    api.lists[POLICIES] = []
    copies = Copies(api, POLICIES, guards.parse_policy, changed)
    copies.follow()
    assert changed.is_set()
    assert copies.is_listed
    changed.clear()
    copies.follow()
    assert not changed.is_set()


def test_a_watch_that_the_server_breaks_off_is_an_error(api, changed):
    api.events[PODS] = [{"type": "ERROR", "object": {"message": "too old"}}]
    with pytest.raises(ApiError, match="too old"):
        Copies(api, PODS, guards.parse_pod, changed).follow()


def test_a_watch_that_breaks_off_within_an_event_is_an_error_too():
    events = read_events(PODS, [b'{"type": "ADDED"}\n', b'{"type": "MODI'])
    assert next(events) == {"type": "ADDED"}
    with pytest.raises(ApiError, match="broke off within an event"):
        next(events)


def test_nfts_words_are_told():
    with pytest.raises(HostError, match="failed"):
        guards.load_table(("false", "--"), "nonsense")


def test_what_is_followed_says_how_much_it_holds(api, loader, changed):
    subject = made(api, loader, changed)
    follow_all(subject)
    assert repr(subject) == f"Guards(Copies({PODS}, 1), Copies({POLICIES}, 1))"
