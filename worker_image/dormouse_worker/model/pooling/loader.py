"""Loads a model for vectors with transformers, and says what it makes and how long a text may be."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import Any

from transformers import MODEL_MAPPING, AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import EMBED
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.files.task_files import Pooling, read_pooling
from dormouse_worker.model.architecture import check_known, find_position_limit
from dormouse_worker.model.device.check import check_device
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.foreign import foreign_errors
from dormouse_worker.model.pooling.attention import register
from dormouse_worker.model.pooling.head import PoolingHead
from dormouse_worker.model.pooling.runner import Encoder, PoolingRunner
from dormouse_worker.model.weights.kind import ModelKind
from dormouse_worker.model.weights.loading import LoadedWeights, load_weights
from dormouse_worker.model.weights.source import LoadReport
from dormouse_worker.model.weights.store import WeightStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedPooler:
    """A model on its device, ready for passes over whole texts."""

    runner: PoolingRunner
    weights: WeightStore  # owns the memory of all of the module's tensors
    load_report: LoadReport
    pooling: Pooling
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
            compute_path=f"transformers, {type(module).__name__} over packed texts; not native: it makes vectors",
            vocab_size=self.vocab_size,
            task=EMBED,
            embedding_size=self.runner.head.size,
            dimensions=self.pooling.dimensions,
        )


def load_pooler(settings: EngineSettings, device: Device) -> LoadedPooler:
    """Load from the settings' directory.

    Raises ModelNotFound, ModelInvalid, …Refused, InvalidSettings, …Memory.
    """
    transformers_logging.disable_progress_bar()
    files = check_model_files(settings.model_path, settings.load_format)
    pooling = read_pooling(files.path, files.config)
    with foreign_errors(files.path):
        check_known(files.path, files.config)
        config = AutoConfig.from_pretrained(  # nosec B615  # of a directory
            files.path, local_files_only=True, trust_remote_code=False
        )
        check_device(device.name, device.capability, settings.dtype, files.config)
        max_model_len = resolve_length(config, settings, pooling)
        weights = load_weights(config, settings, device, files, kind=_kind_of(config))
    logger.info("%s: %s", files.path, weights.report)
    try:
        return _complete(weights, pooling, device, max_model_len)
    except BaseException:
        weights.store.close()
        raise


def resolve_length(config: Any, settings: EngineSettings, pooling: Pooling) -> int:
    """Return the longest text in tokens: as set, else as the model's files say, at most a pass. Raises InvalidSettings.

    A text is computed in one pass: its tokens may see each other.
    """
    limit, wanted, most = find_position_limit(config), settings.max_model_len, settings.max_num_batched_tokens
    if limit is not None:
        limit -= first_position(config)
    if limit is not None and wanted > limit:
        raise InvalidSettings(f"maxModelLen {wanted} is above the model's limit of {limit} positions; lower it")
    if wanted > most:
        raise InvalidSettings(
            f"maxModelLen {wanted} is above maxNumBatchedTokens {most}, and a text is computed in one pass where the "
            "task is embed; raise maxNumBatchedTokens or lower maxModelLen"
        )
    return wanted or min(length for length in (limit, pooling.max_length, most) if length)


def first_position(config: Any) -> int:
    """Return what the model calls a text's first place: RoBERTa's kinds count from behind the padding token's id."""
    counts_behind_padding = "roberta" in config.model_type or config.model_type in {"camembert", "data2vec-text"}
    learns = getattr(config, "position_embedding_type", "absolute") in {"absolute", None}
    return (config.pad_token_id or 0) + 1 if counts_behind_padding and learns else 0


def _kind_of(config: Any) -> ModelKind:
    """Return how to make the model: without a layer for answers about whole texts, which vectors are not made with."""
    found: Any = MODEL_MAPPING.get(type(config), None)
    has_pooler = found is not None and "add_pooling_layer" in inspect.signature(found.__init__).parameters
    return ModelKind(AutoModel, register, {"add_pooling_layer": False} if has_pooler else {})


def _complete(weights: LoadedWeights, pooling: Pooling, device: Device, max_model_len: int) -> LoadedPooler:
    module = weights.module
    text_config = module.config.get_text_config()
    encoder = Encoder(module, device.torch_device, first_position(module.config))
    hidden_size = encoder.check(int(text_config.num_hidden_layers))
    return LoadedPooler(
        runner=PoolingRunner(encoder, PoolingHead(pooling, hidden_size)),
        weights=weights.store,
        load_report=weights.report,
        pooling=pooling,
        max_model_len=max_model_len,
        vocab_size=int(text_config.vocab_size),
        num_parameters=weights.num_parameters,
    )
