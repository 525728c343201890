"""Loads a model for vectors with transformers, and says what it makes and how long a text may be."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import EMBED
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.architecture import check_known, find_position_limit
from dormouse_worker.model.device.check import check_device
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.foreign import foreign_errors
from dormouse_worker.model.native_way import kernels_for, on_torchs_threads
from dormouse_worker.model.pooling.attention import PackedContext, register
from dormouse_worker.model.pooling.classifier import ClassifierHead, probe, whole_logits
from dormouse_worker.model.pooling.head import PoolingHead
from dormouse_worker.model.pooling.made import Made, read_made, resolve_length
from dormouse_worker.model.pooling.runner import Encoder, Head, PoolingRunner
from dormouse_worker.model.weights.kind import ModelKind
from dormouse_worker.model.weights.loading import LoadedWeights, load_weights
from dormouse_worker.model.weights.source import LoadReport
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native.library import Kernels, Missing, load_kernels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedPooler:
    """A model on its device, ready for passes over whole texts."""

    runner: PoolingRunner
    weights: WeightStore  # owns the memory of all of the module's tensors
    load_report: LoadReport
    made: Made
    max_model_len: int
    vocab_size: int
    num_parameters: int

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of all parameters and buffers, shared ones once."""
        return sum(slot.num_bytes for slot in self.weights.layout.slots)

    @property
    def info(self) -> ModelInfo:
        """Return what the front cannot read from files."""
        report, module = self.load_report, self.runner.encoder.module
        return ModelInfo(
            self.num_parameters,
            str(module.dtype).removeprefix("torch."),
            report.num_bytes,
            report.seconds,
            compute_path=self._path(),
            vocab_size=self.vocab_size,
            task=self.made.task,
            embedding_size=self.runner.head.size if self.made.task == EMBED else 0,
            dimensions=self.made.pooling.dimensions,
            labels=self.made.head.labels if self.made.head is not None else (),
        )

    def _path(self) -> str:
        encoder = self.runner.encoder
        maps = "" if encoder.kernels is None else f", maps {encoder.kernels.name}"
        computed = f"transformers, {type(encoder.module).__name__} over packed texts{maps}"
        slow = slow_words(str(encoder.module.dtype).removeprefix("torch."), encoder.device, load_kernels())
        return f"{computed}; not native: it makes no text{slow}"


def slow_words(dtype: str, device: torch.device, kernels: Kernels | Missing) -> str:
    """Return what to tell of a type of 16 bits that this processor computes in software, "" where it does not."""
    is_fast = device.type != "cpu" or dtype not in ("bfloat16", "float16")
    if is_fast or isinstance(kernels, Missing) or kernels.multiplies_bfloat16:
        return ""
    return f"; {dtype} is slow on this processor: dtype float32 is faster, in twice the memory"


def load_pooler(settings: EngineSettings, device: Device) -> LoadedPooler:
    """Load from the settings' directory.

    Raises ModelNotFound, ModelInvalid, …Refused, InvalidSettings, …Memory.
    """
    transformers_logging.disable_progress_bar()
    files = check_model_files(settings.model_path, settings.load_format)
    made = read_made(settings, files)
    with foreign_errors(files.path):
        check_known(files.path, files.config)
        config = AutoConfig.from_pretrained(  # nosec B615  # of a directory
            files.path, local_files_only=True, trust_remote_code=False
        )
        check_device(device.name, device.capability, settings.dtype, files.config)
        max_model_len = resolve_length(position_limit(config), settings, made)
        weights = load_weights(config, settings, device, files, kind=_kind_of(config, made))
    logger.info("%s: %s", files.path, weights.report)
    try:
        return _complete(weights, made, device, max_model_len, settings.attention_backend)
    except BaseException:
        weights.store.close()
        raise


def position_limit(config: Any) -> int | None:
    """Return how many positions a text may have, None where the configuration names no limit."""
    limit = find_position_limit(config)
    return None if limit is None else limit - first_position(config)


def first_position(config: Any) -> int:
    """Return what the model calls a text's first place: RoBERTa's kinds count from behind the padding token's id."""
    counts_behind_padding = "roberta" in config.model_type or config.model_type in {"camembert", "data2vec-text"}
    learns = getattr(config, "position_embedding_type", "absolute") in {"absolute", None}
    return (config.pad_token_id or 0) + 1 if counts_behind_padding and learns else 0


def _kind_of(config: Any, made: Made) -> ModelKind:
    """Return how to make the model: without a layer for answers about whole texts, which vectors are not made with."""
    if made.head is not None:
        return ModelKind(AutoModelForSequenceClassification, register, {})
    found: Any = MODEL_MAPPING.get(type(config), None)
    has_pooler = found is not None and "add_pooling_layer" in inspect.signature(found.__init__).parameters
    return ModelKind(AutoModel, register, {"add_pooling_layer": False} if has_pooler else {})


def _complete(weights: LoadedWeights, made: Made, device: Device, max_model_len: int, attention: str) -> LoadedPooler:
    module = weights.module if made.head is None else weights.module.base_model
    text_config = module.config.get_text_config()
    kernels = on_torchs_threads(kernels_for(attention, device.torch_device, module.dtype))
    encoder = Encoder(module, device.torch_device, first_position(module.config), kernels)
    hidden_size = encoder.check(int(text_config.num_hidden_layers))
    return LoadedPooler(
        runner=PoolingRunner(encoder, _head(weights.module, encoder, made, hidden_size)),
        weights=weights.store,
        load_report=weights.report,
        made=made,
        max_model_len=max_model_len,
        vocab_size=int(text_config.vocab_size),
        num_parameters=weights.num_parameters,
    )


def _head(module: Any, encoder: Encoder, made: Made, hidden_size: int) -> Head:
    """Return what stands behind the encoder. Raises ModelInvalid for a head that reads more than hidden states."""
    if made.head is None:
        return PoolingHead(made.pooling, hidden_size)
    head, texts = ClassifierHead(module, made.head), [probe()]
    hidden = replace(encoder, kernels=None).hidden_states(texts, PackedContext([texts[0].num_tokens]))
    head.check(hidden, whole_logits(module, encoder.arguments(texts)))
    return head
