"""What each layer of a loaded model brings to attention, seen by running one token through it."""

from __future__ import annotations

from typing import Any

import torch

from dormouse_worker.common.errors import ModelInvalid, WorkerError
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.architecture import check_forward
from dormouse_worker.model.attention.hook import DiscoveryContext
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.parallel.communicator import Alone
from dormouse_worker.model.parallel.stages import own_layers, send_stage
from dormouse_worker.model.vision.families import family_of


def discover(module: Any, settings: EngineSettings, device: torch.device, layout: Layout) -> DiscoveryContext:
    """Run one token through the model and look at what each layer brings; as if alone. Raises ModelInvalid."""
    family = family_of(module.config)
    check_forward(module, keeps_all_logits=family is not None and family.keeps_all_logits)
    config = module.config.get_text_config()
    context = DiscoveryContext(stored=settings.kv_cache_dtype)
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    try:
        with torch.inference_mode(), forward_context(context, Alone(layout)):
            if layout.is_last_stage:
                module(input_ids=token, position_ids=token, use_cache=False)
            else:
                send_stage(module, {"input_ids": token, "position_ids": token, "use_cache": False})
    except WorkerError:
        raise
    except Exception as error:  # models that bring their own attention expect what we do not give
        raise ModelInvalid(
            f"{settings.model}: {type(module).__name__} does not run on a paged cache: {error}"
        ) from error
    wanted = own_layers(module, layout)
    if not wanted:
        raise ModelInvalid(f"{settings.model}: {type(module).__name__} has no layers; copy config.json again")
    if sorted(context.layers) != wanted:
        raise ModelInvalid(
            f"{settings.model}: {len(context.layers)} of {len(wanted)} layers use transformers' attention interface; "
            "one that does not reads no paged cache"
        )
    for layer, kind in enumerate(getattr(config, "layer_types", None) or []):
        if kind == "sliding_attention" and layer in wanted and context.calls[layer].window is None:
            raise ModelInvalid(f"{settings.model}: layer {layer} hides its sliding window from the attention interface")
    return context
