"""Loads the model that drafts beside another, and refuses by name what cannot."""

from __future__ import annotations

import logging
from dataclasses import replace

import msgspec

from dormouse_worker.common.errors import InvalidSettings, ModelNotFound
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.draft_files import check_vocabulary, named
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.loader import load

logger = logging.getLogger(__name__)


def draft_settings(settings: EngineSettings, max_model_len: int) -> EngineSettings:
    """Return how the draft model of these settings is loaded: as its target is, which may be that long."""
    return msgspec.structs.replace(
        settings,
        model=settings.speculation_model,
        max_model_len=max_model_len,
        load_format="auto" if settings.load_format == "sharded_state" else settings.load_format,
        speculation_method="off",
        speculation_model="",
        enable_lora=False,
        compile_sizes=(),
    )


def load_draft(settings: EngineSettings, device: Device, target: LoadedModel) -> tuple[LoadedModel, LoadedModel]:
    """Return target and draft model as they lie in one cache: the draft's layers behind the target's.

    Raises what `load` raises, of the draft model, and InvalidSettings where they do not go together.
    """
    if target.tower is not None:
        read = target.tower.family.noun.several
        raise InvalidSettings(
            f"speculation_method is draft, and the model reads {read}, which draft models do not; use suffix, or off"
        )
    with named(settings.speculation_model):
        wanted = as_directory(draft_settings(settings, target.max_model_len))
        if not wanted.model_path.is_dir():
            raise ModelNotFound("no such directory")
        check_vocabulary(settings.model_path, wanted.model_path)
        draft = load(wanted, device)
    if draft.vocab_size != target.vocab_size or draft.tower is not None:
        draft.close()
        raise InvalidSettings(
            f"speculation_model {wanted.model} has rows for {draft.vocab_size} tokens, the model has "
            f"{target.vocab_size}; a draft model is one for text, of the same vocabulary"
        )
    spec = target.cache_spec.beside(draft.cache_spec)
    return replace(target, cache_spec=spec), replace(draft, cache_spec=spec)
