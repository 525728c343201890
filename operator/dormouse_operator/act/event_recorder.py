"""Writes Events: what was decided to be told is told, and what cannot be told is logged and forgotten."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import datetime
from typing import Protocol

from dormouse_api.names import KIND
from dormouse_kube.api import EVENTS, Kind, Resource
from dormouse_kube.errors import Conflict, KubeError
from dormouse_operator.manifests import EventRecord, event_manifest
from dormouse_operator.model import Key

_LOG = logging.getLogger(__name__)


class Creator(Protocol):
    """Who may create objects."""

    async def create(self, kind: Kind, obj: Resource) -> object:
        """See KubeApi."""
        ...


async def record_event(
    api: Creator, event: EventRecord, *, key: Key, uid: str, now: datetime, reporter: str, kind: str = KIND
) -> None:
    """Write an Event about a deployment, or an object of another kind of ours; one that stands already is told."""
    _LOG.info("%s: %s: %s", key, event.reason, event.message)
    manifest = event_manifest(event, key=key, uid=uid, now=now, reporter=reporter, kind=kind)
    try:
        with suppress(Conflict):
            await api.create(EVENTS, manifest)
    except KubeError as error:
        _LOG.warning("%s: event %s was not written: %s", key, event.reason, error)
