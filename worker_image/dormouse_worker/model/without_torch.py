"""Whether an engine needs torch for a model: one decision, from the settings and the model's files. Pure.

Only what comes out the same is computed without it. Whatever is not known to, is torch's: nothing is refused here, and
what is wrong with a model is for transformers to say.
"""

from __future__ import annotations

from collections.abc import Iterator

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import GENERATE, POOLING
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.model.bare.choose import read_model
from dormouse_worker.model.bare_pooling.choose import read_embedder
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.native.library import Kernels, Missing


def why_torch(settings: EngineSettings, task: str, files: ModelFiles, kernels: Kernels | Missing) -> str | None:
    """Return why this model needs torch, a clause that goes after 'because'; None = it does not."""
    reason = next(_asked(settings, task), None)
    if reason is not None:
        return reason
    if isinstance(kernels, Missing):
        return kernels.reason
    is_pooled = task in POOLING
    found = read_embedder(settings, task, files, kernels) if is_pooled else read_model(settings, files)
    return found.reason if isinstance(found, Unfit) else None


def _asked(settings: EngineSettings, task: str) -> Iterator[str]:
    """Yield what the settings ask for that only torch has."""
    wanted = {
        "engine_runtime": settings.engine_runtime == "torch",
        "task": task not in POOLING | {GENERATE},
        "device": settings.device != "cpu",
        "tensor_parallel_size": settings.tensor_parallel_size > 1,
        "pipeline_parallel_size": settings.pipeline_parallel_size > 1,
        "load_format": settings.load_format != "auto",
        "model_impl": settings.model_impl == "transformers",
        "attention_backend": settings.attention_backend not in ("auto", "native"),
        "enable_lora": settings.enable_lora,
        "speculation_method": settings.speculation_method in {"draft", "mtp"},
        "worker_cls": settings.worker_cls != "auto",
        "worker_extension_cls": bool(settings.worker_extension_cls),
    }
    for name, needs_torch in wanted.items():
        if needs_torch:
            yield f"{name} asks for it"
