"""What kopf is told: to wait out outages, to post nothing, and to hear of events only."""

from __future__ import annotations

from dormouse_api.names import LABEL_DEPLOYMENT
from dormouse_kube.api import GPU_POOLS
from dormouse_kube.testing import FakeKube
from dormouse_operator.model import Key, PoolKey
from dormouse_operator.watch.cache import SELECTORS, Cache
from dormouse_operator.watch.feed import Feed
from dormouse_operator.watch.kopf_watch import build_registry, build_settings
from dormouse_operator.watch.sessions import WatchSessions


def test_kopf_waits_out_outages_posts_nothing_and_watches_only_our_children():
    settings = build_settings()
    backoffs = iter(settings.networking.error_backoffs)
    pauses = [next(backoffs) for _ in range(1000)]
    assert max(pauses) <= 10.0
    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True
    assert LABEL_DEPLOYMENT in str(settings.watching.label_selectors)


def test_kopf_has_handlers_of_events_only_so_it_writes_neither_annotations_nor_finalizers():
    feed = Feed(FakeKube(), Cache(), namespaces=(), mark=[].append)
    registry = build_registry(feed, WatchSessions(feed))
    assert registry._changing.get_all_handlers() == []
    assert registry._spawning.get_all_handlers() == []
    assert registry._indexing.get_all_handlers() == []
    assert len(registry._watching.get_all_handlers()) == len(SELECTORS)


async def test_events_reach_the_cache_and_mark_the_deployment_that_they_are_about():
    marked, cache = [], Cache()
    feed = Feed(FakeKube(), cache, namespaces=(), mark=marked.append)
    registry = build_registry(feed, WatchSessions(feed))
    metadata = {"namespace": "team", "name": "tiny", "labels": {LABEL_DEPLOYMENT: "tiny"}, "uid": "1"}
    for version, handler in enumerate(registry._watching.get_all_handlers()):
        obj = {"metadata": {**metadata, "resourceVersion": str(version + 1)}, "spec": {"base": "tiny"}}
        await handler.fn(event={"type": "ADDED", "object": obj})
        await handler.fn(event={"type": None, "object": obj})
    about = [PoolKey("team", "tiny") if kind is GPU_POOLS else Key("team", "tiny") for kind in SELECTORS]
    assert marked == about, "what is known already is no news"
    assert cache.snapshot(Key("team", "tiny")).service is not None
    await registry._watching.get_all_handlers()[0].fn(event={"type": "DELETED", "object": obj})
    assert cache.snapshot(Key("team", "tiny")) is None
