"""A model that takes adapters, on one of the paths that compute."""

from __future__ import annotations

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.loader import load
from tests.worker.model.test_parity import BLOCK_SIZE


def load_adaptable(directory, path, *, num_slots, max_rank, num_copies):
    """Return the model and its backend; `path` is native, lean or transformers."""
    settings = EngineSettings(
        model=str(directory),
        block_size=BLOCK_SIZE,
        model_impl="transformers" if path == "transformers" else "lean",
        enable_lora=True,
        max_loras=num_slots,
        max_lora_rank=max_rank,
        max_cpu_loras=num_copies,
    )
    model = load(settings, CpuDevice(Host()))
    if path == "native":
        assert isinstance(model.native, NativeDecoder), model.native
    return model, NativeBackend() if path == "native" else SdpaBackend()
