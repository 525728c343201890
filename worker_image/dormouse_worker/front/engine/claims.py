"""What this worker claims of the worker protocol. Pure."""

from __future__ import annotations

from dormouse_api.capabilities import Capability
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import GENERATE

LEVELS_CLAIMED = {1: Capability.SLEEP_LEVEL_1, 2: Capability.SLEEP_LEVEL_2}
_ALWAYS = (Capability.SLEEP_LEVEL_1, Capability.SLEEP_LEVEL_2, Capability.STANDBY)


def claims(settings: EngineSettings, task: str) -> tuple[Capability, ...]:
    """Return what a worker of this task claims; the task is "" where the model cannot be read."""
    if settings.runtime == "vllm":
        cached = (Capability.PREFIX_CACHE,) if settings.enable_prefix_caching else ()
        return (Capability.STANDBY, Capability.RELAY, *cached)
    if task != GENERATE:
        return _ALWAYS
    cached = (Capability.PREFIX_CACHE,) if settings.enable_prefix_caching else ()
    return (*_ALWAYS, Capability.RESUME, Capability.RELAY, *cached)
