"""What a cache of 8 bits goes with so far. Pure, without torch: engines that have none ask here, too."""

from __future__ import annotations

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.settings import AUTO, EngineSettings


def is_rounded(settings: EngineSettings) -> bool:
    """Return whether keys and values are stored with 8 bits."""
    return settings.kv_cache_dtype != AUTO


def check_cache_dtype(settings: EngineSettings, *, generates: bool, sees: bool) -> None:
    """Raise InvalidSettings where nothing reads such a cache."""
    if not is_rounded(settings):
        return
    if settings.device != "cpu":
        _refuse(settings, f"so far only kernels for processors read it, not {settings.device}'s")
    if sees:
        _refuse(settings, "so far it is not combined with a model that reads images")
    if not generates:
        _refuse(settings, f"task {settings.task} keeps no paged cache of keys and values")


def _refuse(settings: EngineSettings, reason: str) -> None:
    raise InvalidSettings(f"kv_cache_dtype is {settings.kv_cache_dtype}, and {reason}; set it to {AUTO}")
