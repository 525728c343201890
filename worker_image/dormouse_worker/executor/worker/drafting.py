"""Who drafts beside a model that a worker with torch loaded: a small model, a head, or nobody."""

from __future__ import annotations

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.worker.draft_model import DraftModel
from dormouse_worker.executor.worker.setup import Draft
from dormouse_worker.executor.worker.torch_draft_head import TorchDraftHead
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.drafting.mtp_head import load_mtp
from dormouse_worker.model.drafting.torch_head import load_eagle
from dormouse_worker.model.loaded import LoadedModel


def load_draft(settings: EngineSettings, device: Device, target: LoadedModel) -> Draft | None:
    """Load who the settings name; None = nobody. Raises what loading raises, and names the draft."""
    if settings.speculation_method == "draft":
        return DraftModel(settings, device, target)
    load = {"eagle": load_eagle, "mtp": load_mtp}.get(settings.speculation_method)
    return None if load is None else TorchDraftHead(settings, device, load(settings, device, target))
