"""Loads a model with transformers so that its attention calls ours, and says what the cache must hold for it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.adapters.attach import adapt_lean, adapt_modules, make_adapters
from dormouse_worker.model.adapters.given_keys import key_shape
from dormouse_worker.model.architecture import check_architecture, check_known, find_position_limit
from dormouse_worker.model.attention.choose import AUTO
from dormouse_worker.model.attention.hook import DiscoveryContext
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.device.check import check_device
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.discovery import discover
from dormouse_worker.model.encoder_decoder.load import is_two_sided, load_two_sided
from dormouse_worker.model.foreign import foreign_errors
from dormouse_worker.model.kv_cache import CacheSpec
from dormouse_worker.model.lean.build import build_lean
from dormouse_worker.model.lean.compiled import compile_layers
from dormouse_worker.model.lean.decoder import LeanDecoder
from dormouse_worker.model.lean.fit import build_native
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.native_way import kernels_for, on_torchs_threads
from dormouse_worker.model.parallel.shards import Vocabulary
from dormouse_worker.model.quantized.modules import computed_dtype, name_of_format
from dormouse_worker.model.quantized.stored_config import without_own
from dormouse_worker.model.vision.families import (
    check_passes,
    check_vision,
    check_weights,
    family_of,
    image_merge,
    images_are_whole,
    max_image_rows,
    num_deep,
)
from dormouse_worker.model.vision.tower import ImageTower
from dormouse_worker.model.vision.widened import is_better_widened
from dormouse_worker.model.weights.kind import GENERATES, SEES
from dormouse_worker.model.weights.loading import LoadedWeights, load_weights
from dormouse_worker.native.library import load_kernels

logger = logging.getLogger(__name__)


def load(settings: EngineSettings, device: Device, layout: Layout | None = None) -> LoadedModel:
    """Load a rank's part from the settings' directory; no other rank is asked.

    Raises ModelNotFound, ModelInvalid, …Refused, InvalidSettings, …Memory. The same settings load the same weights,
    random ones (`load_format=dummy`) included.
    """
    transformers_logging.disable_progress_bar()
    layout = layout or Layout()
    files = check_model_files(settings.model_path, settings.load_format, layout)
    with foreign_errors(files.path):
        check_known(files.path, files.config)
        config = AutoConfig.from_pretrained(  # nosec B615  # of a directory
            files.path, local_files_only=True, trust_remote_code=False
        )
        check_device(device.name, device.capability, settings.dtype, without_own(files.config))
        if is_two_sided(config):
            return load_two_sided(config, settings, device, files, layout)
        check_architecture(config)
        max_model_len = resolve_max_model_len(config, settings.max_model_len)
        sees = family_of(config) is not None
        if sees:
            check_vision(config, settings, layout)
            check_weights(config, settings)
            check_passes(config, settings)
        weights = load_weights(config, settings, device, files, layout, kind=SEES if sees else GENERATES)
    logger.info("%s: %s", files.path, weights.report)
    try:
        return _complete(weights, settings, device, max_model_len, layout)
    except BaseException:
        weights.store.close()
        raise


def _complete(
    weights: LoadedWeights, settings: EngineSettings, device: Device, max_model_len: int, layout: Layout
) -> LoadedModel:
    module = weights.module
    discovered = discover(module, settings, device.torch_device, layout)
    layers = sorted(discovered.layers.items())
    windows = tuple(discovered.calls[layer].window for layer, _ in layers)
    specs, first_layer = tuple(spec for _, spec in layers), layers[0][0]
    if layout.pipeline > 1:  # all stages share one set of tables, whatever windows the layers of each have
        windows = ()
    lean = _choose_lean(module, discovered, settings, layout)
    adapters = make_adapters(weights, settings, device, key_shape(specs, windows, layout))
    if adapters is not None:
        lean = adapt_lean(lean, adapters) if isinstance(lean, LeanDecoder) else adapt_modules(lean, module, adapters)
    if isinstance(lean, Unfit):
        native: NativeDecoder | Unfit = lean
    elif device.has_copy_engine:  # a pass over arriving weights is the decoder's: all passes must have the same bits
        native = Unfit("weights arrive while it computes")
    else:
        native = build_native(lean, specs, load_kernels(), adapters)
    if settings.compile_sizes:
        lean = _compile(lean, native, settings, name_of_format(module))
    return LoadedModel(
        module=module,
        lean=lean if isinstance(lean, LeanDecoder) else None,
        native=native,
        cache_spec=CacheSpec.of(specs, settings.block_size, windows, first_layer=first_layer),
        device=device.torch_device,
        max_model_len=max_model_len,
        vocab_size=int(module.config.get_text_config().vocab_size),
        weights=weights.store,
        load_report=weights.report,
        attention_shapes=discovered.shapes(settings.block_size, looks_ahead=images_are_whole(module.config)),
        layout=layout,
        num_parameters=weights.num_parameters,
        adapters=adapters,
        quantization=name_of_format(module) or NONE,
        tower=_tower(module, settings, device),
        image_rows=max_image_rows(module.config, settings, max_model_len),
        images_are_whole=images_are_whole(module.config),
        image_merge=image_merge(module.config),
    )


def _tower(module: Any, settings: EngineSettings, device: Device) -> ImageTower | None:
    family = family_of(module.config)
    if family is None:
        return None
    hidden_size = int(module.config.get_text_config().hidden_size)
    dtype = computed_dtype(module.get_input_embeddings())
    return ImageTower(
        module=module,
        family=family,
        folder=Path(settings.image_dir),
        hidden_size=hidden_size,
        num_deep=num_deep(module.config),
        dtype=dtype,
        device=device.torch_device,
        needed=frozenset(family.largest(module.config)),
        is_widened=is_better_widened(device.torch_device, dtype),
        kernels=on_torchs_threads(kernels_for(settings.attention_backend, device.torch_device, dtype)),
    )


def _compile(
    lean: LeanDecoder | Unfit, native: NativeDecoder | Unfit, settings: EngineSettings, stored_as: str | None
) -> LeanDecoder | Unfit:
    """Return the forward pass with compiled layers. Raises InvalidSettings where there is none to compile."""
    if isinstance(lean, Unfit):
        raise InvalidSettings(
            f"compile_sizes needs our own forward pass, which does not compute {settings.model}: {lean.reason}; "
            "leave it empty"
        )
    if isinstance(native, NativeDecoder) and settings.attention_backend in (AUTO, NativeBackend.name):
        logger.info("compile_sizes has no effect: kernels of ours compute (%s)", native.name)
        return lean
    if stored_as is not None:
        raise InvalidSettings(
            f"compile_sizes are {settings.compile_sizes}, and layers of quantization {stored_as} are not "
            "compiled; leave one of them out"
        )
    compiled, report = compile_layers(lean, settings.compile_sizes, settings.profile_cache)
    logger.info("%s", report)
    return compiled


def resolve_max_model_len(config: Any, wanted: int) -> int:
    """Return the longest sequence in tokens: `wanted`, or for 0 the model's own limit. Raises InvalidSettings."""
    limit = find_position_limit(config)
    if limit is None and wanted == 0:
        raise InvalidSettings("config.json names no max_position_embeddings; set maxModelLen")
    if limit is not None and wanted > limit:
        raise InvalidSettings(f"maxModelLen {wanted} is above the model's limit of {limit} positions; lower it")
    return wanted or limit or 0


def _choose_lean(
    module: Any, discovered: DiscoveryContext, settings: EngineSettings, layout: Layout
) -> LeanDecoder | Unfit:
    """Return our own forward pass if the settings allow it and the model fits. Raises InvalidSettings."""
    if settings.model_impl == "transformers":
        return Unfit("model_impl is transformers")
    vocabulary = Vocabulary(int(module.config.get_text_config().vocab_size), layout) if layout.tensor > 1 else None
    lean = build_lean(module, discovered.calls, vocabulary)
    if isinstance(lean, LeanDecoder):
        return lean
    if settings.model_impl == "lean":
        raise InvalidSettings(f"model_impl is lean, which does not fit {settings.model}: {lean.reason}; use auto")
    logger.info("%s runs through transformers' forward pass: %s", settings.model, lean.reason)
    return lean
