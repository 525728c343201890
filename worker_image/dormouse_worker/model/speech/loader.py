"""Loads a Whisper model with transformers' classes, and says what it is."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import AutoConfig, AutoModelForSpeechSeq2Seq
from transformers.utils import logging as transformers_logging

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import TRANSCRIBE
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.files.speech_files import SpeechSpec, read_speech
from dormouse_worker.model.architecture import check_known
from dormouse_worker.model.device.check import check_device
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.foreign import foreign_errors
from dormouse_worker.model.quantized.rounding import INT8
from dormouse_worker.model.quantized.stored_config import without_own
from dormouse_worker.model.speech.cache import Sizes
from dormouse_worker.model.speech.native import choose_arithmetic
from dormouse_worker.model.speech.network import Network
from dormouse_worker.model.weights.kind import ModelKind
from dormouse_worker.model.weights.loading import load_weights
from dormouse_worker.model.weights.source import LoadReport
from dormouse_worker.model.weights.store import WeightStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedSpeech:
    """A model on its device."""

    network: Network
    spec: SpeechSpec
    sizes: Sizes
    weights: WeightStore  # owns the memory of all of the module's tensors
    load_report: LoadReport
    num_parameters: int

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of all parameters and buffers, shared ones once."""
        return sum(slot.num_bytes for slot in self.weights.layout.slots)

    @property
    def info(self) -> ModelInfo:
        """Return what the front cannot read from files."""
        return ModelInfo(
            self.num_parameters,
            str(self.sizes.dtype).removeprefix("torch."),
            self.load_report.num_bytes,
            self.load_report.seconds,
            compute_path=self.network.arithmetic.name,
            vocab_size=self.spec.vocab_size,
            task=TRANSCRIBE,
        )


def load_speech(settings: EngineSettings, device: Device) -> LoadedSpeech:
    """Load from the settings' directory.

    Raises ModelNotFound, ModelInvalid, …Refused, InvalidSettings, …Memory.
    """
    transformers_logging.disable_progress_bar()
    files = check_model_files(settings.model_path, settings.load_format)
    spec = read_speech(files.path)
    _check_length(settings, spec)
    with foreign_errors(files.path):
        check_known(files.path, files.config)
        config = AutoConfig.from_pretrained(  # nosec B615  # of a directory
            files.path, local_files_only=True, trust_remote_code=False
        )
        check_device(device.name, device.capability, settings.dtype, without_own(files.config))
        kind = ModelKind(AutoModelForSpeechSeq2Seq, lambda: "sdpa", rounds=partial(_is_rounded, settings.quantization))
        loaded = load_weights(config, settings, device, files, kind=kind)
    logger.info("%s: %s", files.path, loaded.report)
    sizes = _sizes(config, spec, loaded.module.dtype)
    arithmetic = choose_arithmetic(loaded.module, sizes, settings, device)
    return LoadedSpeech(
        network=Network(loaded.module, device.torch_device, arithmetic),
        spec=spec,
        sizes=sizes,
        weights=loaded.store,
        load_report=loaded.report,
        num_parameters=loaded.num_parameters,
    )


def _is_rounded(method: str, path: str) -> bool:
    """Return whether a map has fewer bits: in 8 all have, in 4 those that meet one token at a time."""
    if path.endswith((".conv1", ".conv2")):
        return False
    is_of_tokens = path == "proj_out" or path.startswith("model.decoder.")
    return method == INT8.name or (is_of_tokens and not path.endswith(("encoder_attn.k_proj", "encoder_attn.v_proj")))


def _sizes(config: Any, spec: SpeechSpec, dtype: Any) -> Sizes:
    heads = config.decoder_attention_heads
    return Sizes(
        num_layers=config.decoder_layers,
        num_heads=heads,
        head_size=config.d_model // heads,
        max_source_positions=spec.max_source_positions,
        max_target_positions=spec.max_target_positions,
        dtype=dtype,
    )


def _check_length(settings: EngineSettings, spec: SpeechSpec) -> None:
    if settings.max_model_len not in {0, spec.max_target_positions}:
        raise InvalidSettings(
            f"maxModelLen is {settings.max_model_len}; a window of this model has {spec.max_target_positions} tokens: "
            "leave it out"
        )
