"""Whether a decoder's files are what is computed without torch. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.bare.config import BareConfig, read_config
from dormouse_worker.model.bare.tensors import shapes_of
from dormouse_worker.model.device.check import resolve_dtype
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.quantized.blocks import MOST_INPUTS

STORED = {"float32": "F32", "bfloat16": "BF16"}  # what the kernels read, and its name in a file


def read_model(settings: EngineSettings, files: ModelFiles) -> BareConfig | Unfit:
    """Return the sizes of a model whose files are what is computed without torch, or where they differ."""
    config = read_config(files.config)
    if isinstance(config, Unfit):
        return config
    reason = next(_differences(settings, config, files), None)
    return config if reason is None else Unfit(reason)


def _differences(settings: EngineSettings, config: BareConfig, files: ModelFiles) -> Iterator[str]:
    if settings.max_model_len > config.max_position_embeddings:
        yield "max_model_len is above the model's limit"
    if files.gguf is not None:
        yield "its weights lie in a GGUF file"
    if settings.quantization != NONE and max(config.hidden_size, config.intermediate_size) > MOST_INPUTS:
        yield f"a map of its layers has more than {MOST_INPUTS} inputs"
    dtype = resolve_dtype(settings.dtype, files.config)
    if dtype not in STORED:
        yield f"its type is {dtype or 'not told'}"
    yield from odd_tensors(shapes_of(config), files.tensors, STORED[dtype])


def odd_tensors(
    wanted: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, StoredTensor],
    dtype: str,
    unused: Set[str] = frozenset(),
) -> Iterator[str]:
    """Yield where files differ from the shapes that are wanted, in this type; tensors of `unused` may be there."""
    if odd := sorted((wanted.keys() ^ stored.keys()) - unused):
        yield f"its files differ in {odd[0]} from what config.json describes"
    for name, shape in wanted.items():
        if (stored[name].dtype, stored[name].shape) != (dtype, shape):
            yield f"{name} is {stored[name].dtype} {list(stored[name].shape)}, not {dtype} {list(shape)}"
