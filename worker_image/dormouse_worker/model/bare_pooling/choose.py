"""Whether an encoder's files are what is computed without torch. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.model.bare.choose import STORED, odd_tensors
from dormouse_worker.model.bare_pooling.config import UNUSED, EncoderConfig, read_encoder, shapes_of
from dormouse_worker.model.device.check import resolve_dtype
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.pooling.made import read_made

DTYPE = "float32"  # what is computed in, and what the files have


def read_embedder(settings: EngineSettings, files: ModelFiles) -> EncoderConfig | Unfit:
    """Return the sizes of an encoder whose files are what is computed without torch, or where they differ."""
    config = read_encoder(files.config)
    if isinstance(config, Unfit):
        return config
    reason = next(_differences(settings, config, files), None)
    return config if reason is None else Unfit(reason)


def _differences(settings: EngineSettings, config: EncoderConfig, files: ModelFiles) -> Iterator[str]:
    if files.gguf is not None:
        yield "its weights lie in a GGUF file"
    if settings.quantization != NONE:
        yield f"quantization is {settings.quantization}"
    if (dtype := resolve_dtype(settings.dtype, files.config)) not in (DTYPE, ""):
        yield f"its type is {dtype}"
    yield from odd_tensors(shapes_of(config), files.tensors, STORED[DTYPE], UNUSED)
    if read_made(settings, files).pooling.dense:
        yield "a layer stands behind its pooling"
