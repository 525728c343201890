"""Whether an engine needs torch for a model: one decision, from the settings and the model's files. Pure.

Only what comes out the same is computed without it. Whatever is not known to, is torch's: nothing is refused here, and
what is wrong with a model is for transformers to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.common.tasks import GENERATE
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.bare.config import BareConfig, read_config
from dormouse_worker.model.bare.tensors import shapes_of
from dormouse_worker.model.device.check import resolve_dtype
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.quantized.blocks import MOST_INPUTS
from dormouse_worker.native.library import Kernels, Missing

STORED = {"float32": "F32", "bfloat16": "BF16"}  # what the kernels read, and its name in a file


def why_torch(settings: EngineSettings, task: str, files: ModelFiles, kernels: Kernels | Missing) -> str | None:
    """Return why this model needs torch, a clause that goes after 'because'; None = it does not."""
    reason = next(_asked(settings, task), None)
    if reason is not None:
        return reason
    if isinstance(kernels, Missing):
        return kernels.reason
    found = read_model(settings, files)
    return found.reason if isinstance(found, Unfit) else None


def read_model(settings: EngineSettings, files: ModelFiles) -> BareConfig | Unfit:
    """Return the sizes of a model whose files are what is computed without torch, or where they differ."""
    config = read_config(files.config)
    if isinstance(config, Unfit):
        return config
    reason = next(_differences(settings, config, files), None)
    return config if reason is None else Unfit(reason)


def _asked(settings: EngineSettings, task: str) -> Iterator[str]:
    """Yield what the settings ask for that only torch has."""
    wanted = {
        "engine_runtime": settings.engine_runtime == "torch",
        "task": task != GENERATE,
        "device": settings.device != "cpu",
        "tensor_parallel_size": settings.tensor_parallel_size > 1,
        "pipeline_parallel_size": settings.pipeline_parallel_size > 1,
        "load_format": settings.load_format != "auto",
        "model_impl": settings.model_impl == "transformers",
        "attention_backend": settings.attention_backend not in ("auto", "native"),
        "enable_lora": settings.enable_lora,
        "speculation_method": settings.speculation_method == "draft",
        "worker_cls": settings.worker_cls != "auto",
        "worker_extension_cls": bool(settings.worker_extension_cls),
    }
    for name, needs_torch in wanted.items():
        if needs_torch:
            yield f"{name} asks for it"


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
    yield from _odd_tensors(shapes_of(config), files.tensors, STORED[dtype])


def _odd_tensors(
    wanted: Mapping[str, tuple[int, ...]], stored: Mapping[str, StoredTensor], dtype: str
) -> Iterator[str]:
    if odd := sorted(wanted.keys() ^ stored.keys()):
        yield f"its files differ in {odd[0]} from what config.json describes"
    for name, shape in wanted.items():
        if (stored[name].dtype, stored[name].shape) != (dtype, shape):
            yield f"{name} is {stored[name].dtype} {list(stored[name].shape)}, not {dtype} {list(shape)}"
