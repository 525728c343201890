"""What a worker may say that it can do beyond what every worker must (`docs/reference/worker-protocol.md`)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Capability(StrEnum):
    """Names in `WorkerStatus.capabilities`. What is not claimed is refused when it is asked for."""

    SLEEP_LEVEL_1 = "sleep_level_1"
    SLEEP_LEVEL_2 = "sleep_level_2"
    STANDBY = "standby"
    RESUME = "resume"
    RELAY = "relay"
    PREFIX_CACHE = "prefix_cache"


MEANINGS: Mapping[Capability, str] = MappingProxyType(
    {
        Capability.SLEEP_LEVEL_1: "sleeps with its weights in host memory",
        Capability.SLEEP_LEVEL_2: "sleeps without weights",
        Capability.STANDBY: "ends its engine at sleep level 3, and starts it again",
        Capability.RESUME: "continues another worker's stream, token for token",
        Capability.RELAY: "carries many calls over one stream",
        Capability.PREFIX_CACHE: "keeps what it computed of a prompt for the next that begins alike",
    }
)
