"""Loads an encoder-decoder model of text, and says what both of its sides may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import AutoModelForSeq2SeqLM

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import AUTO, NONE, EngineSettings
from dormouse_worker.common.sides import Sides, source_room
from dormouse_worker.files.json_files import read_object
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.model.attention.interface import AttentionShape
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.encoder_decoder.parts import KINDS, decoder_of
from dormouse_worker.model.kv_cache import CacheSpec, LayerSpec
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.weights.kind import ModelKind
from dormouse_worker.model.weights.loading import LoadedWeights, load_weights

UNFIT = "an encoder reads its prompts"
_KIND = ModelKind(AutoModelForSeq2SeqLM, lambda: "eager")  # the encoder's attention, as transformers computes T5's


def is_two_sided(config: Any) -> bool:
    """Return whether the model is an encoder-decoder of a kind that is known here."""
    return getattr(config, "is_encoder_decoder", False) and config.model_type in KINDS


def load_two_sided(
    config: Any, settings: EngineSettings, device: Device, files: ModelFiles, layout: Layout
) -> LoadedModel:
    """Load the whole model. Raises as `loader.load`; InvalidSettings for what is not combined with it."""
    _check_alone(config, settings, layout)
    sides, max_model_len = resolve_sides(config, settings, read_object(files.path / "generation_config.json"))
    weights = load_weights(config, settings, device, files, layout, kind=_KIND)
    try:
        return _complete(weights, settings, device, sides, max_model_len)
    except BaseException:
        weights.store.close()
        raise


def resolve_sides(config: Any, settings: EngineSettings, generation: Mapping[str, Any]) -> tuple[Sides, int]:
    """Return both sides and the longest sequence, source, opening and output together.

    Models with a table of positions have one for each side. Raises InvalidSettings, ModelInvalid.
    """
    size, most, wanted = settings.block_size, settings.max_num_batched_tokens, settings.max_model_len
    limit = int(getattr(config, "max_position_embeddings", None) or 0)
    made_for = limit or int(getattr(config, "n_positions", None) or 0)
    if not (wanted or made_for):
        raise InvalidSettings("config.json names no max_position_embeddings or n_positions; set maxModelLen")
    longest = source_room(limit, size) + limit
    if limit and wanted > longest:
        raise InvalidSettings(
            f"maxModelLen is {wanted}; prompt and answer of this model have {limit} tokens each, {longest} together "
            f"with a prompt in whole blocks of {size}; lower it"
        )
    max_model_len = wanted or source_room(made_for, size) + made_for
    opening = _opening(config, generation)
    room = (min(max_model_len - len(opening) - 1, most) // size) * size
    if room < size:
        raise InvalidSettings(
            f"maxModelLen is {max_model_len} and max_num_batched_tokens is {most}; a prompt takes a block of {size} "
            f"tokens at least, in one pass, and {len(opening) + 1} follow it: raise them"
        )
    sides = Sides(
        opening=opening,
        max_source_tokens=min(limit or room, room),
        max_target_tokens=min(limit or max_model_len, max_model_len),
        bad_words_token_ids=_bad_words(generation),
    )
    return sides, max_model_len


def _opening(config: Any, generation: Mapping[str, Any]) -> tuple[int, ...]:
    """Return what transformers' `generate` begins an answer with. Raises ModelInvalid where nothing is told."""

    def told(name: str) -> int | None:
        value = generation.get(name, getattr(config, name, None))
        return value if isinstance(value, int) else None

    starts = [value for name in ("decoder_start_token_id", "bos_token_id") if (value := told(name)) is not None]
    forced = told("forced_bos_token_id")
    opening = (*starts[:1], *(() if forced is None else (forced,)))
    if not starts or not all(0 <= token_id < config.vocab_size for token_id in opening):
        raise ModelInvalid(
            f"generation_config.json: answers begin with decoder_start_token_id and forced_bos_token_id, {opening}; "
            f"needed are one or two below the vocabulary size {config.vocab_size}; copy the model again"
        )
    return opening


def _bad_words(generation: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    words = generation.get("bad_words_ids")
    if not isinstance(words, list):
        return ()
    return tuple(tuple(word) for word in words if isinstance(word, list) and word)


def _check_alone(config: Any, settings: EngineSettings, layout: Layout) -> None:
    """Raise InvalidSettings for what such a model is not combined with yet."""
    wrong = {
        f"tensor_parallel_size × pipeline_parallel_size is {layout.world_size}; allowed is 1": layout.world_size > 1,
        "load_format is sharded_state; allowed are auto, dummy": settings.load_format == "sharded_state",
        f"quantization is {settings.quantization}; allowed is none": settings.quantization != NONE,
        "config.json has a quantization_config; allowed are weights of 16 or 32 bits": hasattr(
            config, "quantization_config"
        ),
        f"kv_cache_dtype is {settings.kv_cache_dtype}; allowed is {AUTO}": settings.kv_cache_dtype != AUTO,
        "compile_sizes is set; allowed is none": bool(settings.compile_sizes),
        f"model_impl is {settings.model_impl}; allowed is auto": settings.model_impl == "lean",
        f"attention_backend is {settings.attention_backend}; allowed is auto": settings.attention_backend != AUTO,
        "enable_lora is set; allowed are models without adapters": settings.enable_lora,
        f"speculation_method is {settings.speculation_method}; allowed is off": settings.speculation_method != "off",
        f"kv_store_dir is {settings.kv_store_dir!r}; allowed is none": bool(settings.kv_store_dir),
        "decoder_vocab_size differs from vocab_size": getattr(config, "decoder_vocab_size", config.vocab_size)
        != config.vocab_size,
    }
    if why := next((words for words, is_so in wrong.items() if is_so), ""):
        raise InvalidSettings(f"{why} where {UNFIT} ({config.model_type})")


def _complete(
    weights: LoadedWeights, settings: EngineSettings, device: Device, sides: Sides, max_model_len: int
) -> LoadedModel:
    module, size = weights.module, settings.block_size
    layers = decoder_of(module).layers
    heads, head_size, dtype = layers[0].own.num_heads, layers[0].own.head_size, module.dtype
    spec = LayerSpec(heads, head_size, head_size, dtype)
    return LoadedModel(
        module=module,
        lean=None,
        native=Unfit(UNFIT),
        cache_spec=CacheSpec.of((spec,) * len(layers), size),
        device=device.torch_device,
        max_model_len=max_model_len,
        vocab_size=int(module.config.vocab_size),
        weights=weights.store,
        load_report=weights.report,
        attention_shapes=(AttentionShape(heads, heads, head_size, head_size, dtype, size),),
        layout=Layout(),
        num_parameters=weights.num_parameters,
        sides=sides,
    )
