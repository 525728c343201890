"""What the front knows of a model from its files, before and without loading it: names, sizes, defaults, digest."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import GENERATE
from dormouse_worker.files.json_files import read_object
from dormouse_worker.files.model_digest import digest_model
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.files.task_files import task_of
from dormouse_worker.front.sampling_rules import RULES

logger = logging.getLogger(__name__)

GENERATION_FILE = "generation_config.json"
MAX_TOP_K = (1 << 31) - 1
_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What holds where a request leaves a field open: generation_config.json, else the values of the API."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model's description. Numbers that the files do not tell are 0."""

    architecture: str
    vocab_size: int
    max_model_len: int  # tokens; the setting, else the model's own limit; the engine's report overrides it
    dtype: str
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults
    digest: str
    task: str = GENERATE


def read_model_card(settings: EngineSettings) -> ModelCard:
    """Read the model's directory. Raises ModelNotFound, ModelInvalid, PickleRefused or InvalidSettings."""
    files = check_model_files(settings.model_path, settings.load_format)
    config = files.config
    text = _text_config(config)
    generation = read_object(files.path / GENERATION_FILE)
    heads = _first_int(text, "num_attention_heads", "n_head")
    return ModelCard(
        architecture=next(iter(config.get("architectures") or ()), ""),
        vocab_size=_first_int(text, "vocab_size") or _first_int(config, "vocab_size"),
        max_model_len=settings.max_model_len or _first_int(text, *_LENGTH_NAMES),
        dtype=_dtype(settings.dtype, {**config, **text}),
        num_layers=_first_int(text, "num_hidden_layers", "n_layer"),
        num_attention_heads=heads,
        num_kv_heads=_first_int(text, "num_key_value_heads") or heads,
        eos_token_ids=_ids(generation.get("eos_token_id"))
        or _ids(text.get("eos_token_id", config.get("eos_token_id"))),
        defaults=_defaults(files.path / GENERATION_FILE, generation),
        digest=digest_model(files),
        task=task_of(settings, config),
    )


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part about the language model; of models with several parts it stands apart."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config


def _dtype(setting: str, config: Mapping[str, Any]) -> str:
    if setting != "auto":
        return setting
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _first_int(config: Mapping[str, Any], *names: str) -> int:
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int)), 0)


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(item for item in values if isinstance(item, int))


def _defaults(file: Path, generation: Mapping[str, Any]) -> SamplingDefaults:
    """Return the model's defaults. What is no number is passed over, and a negative top_k means all, as in vLLM.

    A number outside the limits of requests is left out with a warning: else nobody could be served without setting it.
    """
    known = {name: generation.get(name) for name in SamplingDefaults.__slots__}
    numbers: dict[str, Any] = {}
    for name, value in known.items():
        if not isinstance(value, int | float):
            continue
        limit = _broken_limit(name, value)
        if limit:
            logger.warning("%s: %s is %s; allowed: %s; it is not used as a default", file, name, value, limit)
        else:
            numbers[name] = min(max(0, int(value)), MAX_TOP_K) if name == "top_k" else value
    return SamplingDefaults(**numbers)


def _broken_limit(name: str, value: float) -> str:
    """Return the limit that a default breaks, "" if it keeps all."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:  # JSON has no limit
        return "a finite number"
    if name == "top_k":
        return "" if math.isfinite(value) else "a finite number"
    params = pb.SamplingParams()
    setattr(params, name, value)
    return next((rule.limit for rule in RULES if rule.field == name and rule.bad(params, 0)), "")
