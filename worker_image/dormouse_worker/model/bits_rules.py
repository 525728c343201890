"""What weights and caches of fewer bits go with so far. Pure, without torch: engines that have none ask here, too."""

from __future__ import annotations

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import AUTO, NONE, EngineSettings


def check_quantization(settings: EngineSettings, layout: Layout, *, is_stored: bool, can_round: bool) -> None:
    """Raise InvalidSettings where a quantization does not go with the model, or with what else is asked of it.

    `is_stored`: transformers' quantizers load the weights. `can_round`: a model of this kind may have fewer bits.
    """
    if layout.world_size > 1 and is_stored:
        raise InvalidSettings(
            f"tensor_parallel_size {layout.tensor} × pipeline_parallel_size {layout.pipeline} = {layout.world_size} "
            "ranks; a model whose weights transformers' quantizers load runs on one"
        )
    if settings.quantization != NONE and not can_round:
        raise InvalidSettings(
            f"quantization is {settings.quantization}, and so far nothing is quantized beside task {settings.task}; "
            "set it to none"
        )
    if settings.quantization != NONE and is_stored:
        raise InvalidSettings(
            f"quantization is {settings.quantization}, and config.json says that the weights are quantized already; "
            "set it to none, or use the model's plain weights"
        )


def check_cache_dtype(settings: EngineSettings, *, generates: bool, read: str) -> None:
    """Raise InvalidSettings where nothing reads such a cache. `read` is what an encoder reads; "" = there is none."""
    if settings.kv_cache_dtype == AUTO:
        return
    if read:
        _refuse(settings, f"so far it is not combined with a model that reads {read}")
    if not generates:
        _refuse(settings, f"task {settings.task} keeps no paged cache of keys and values")


def _refuse(settings: EngineSettings, reason: str) -> None:
    raise InvalidSettings(f"kv_cache_dtype is {settings.kv_cache_dtype}, and {reason}; set it to {AUTO}")
