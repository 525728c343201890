"""Whether this process sees stand-ins in place of GPUs, as its environment says. Knows no device."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_worker.common.settings import EngineSettings

# A folder with a folder for each device: to `device: cuda` what CUDA_VISIBLE_DEVICES is. Its name is not one of the
# operator's own, so that a resource's spec.template may set it.
DEVICES_VARIABLE = "STAND_IN_DEVICES"


def has_stand_in(settings: EngineSettings, environ: Mapping[str, str]) -> bool:
    """Return whether `device: cuda` means a stand-in here."""
    return settings.device == "cuda" and bool(environ.get(DEVICES_VARIABLE))


def has_gpu(settings: EngineSettings, environ: Mapping[str, str]) -> bool:
    """Return whether it means a GPU."""
    return settings.device == "cuda" and not has_stand_in(settings, environ)
