"""What an engine process that waits is told when it is wanted."""

from __future__ import annotations

import msgspec

from dormouse_worker.common.settings import EngineSettings


class EngineStart(msgspec.Struct, frozen=True):
    """Where to connect, and what to serve."""

    socket: str  # path of the unix socket on which the front listens
    settings: EngineSettings
