"""Loads an encoder into arrays, and computes passes with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.ipc import NATIVE, ModelInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.pooling.batch import PoolingBatch, PoolingOutput
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.bare.loader import reserve
from dormouse_worker.model.bare.weight_plan import plan_plain
from dormouse_worker.model.bare_pooling.choose import DTYPE, read_embedder
from dormouse_worker.model.bare_pooling.config import shapes_of
from dormouse_worker.model.bare_pooling.forward import NativeEncoder
from dormouse_worker.model.bare_pooling.head import vectors_of
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.pooling.made import Made, read_made, resolve_length
from dormouse_worker.model.weights.source import LoadReport
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native.library import Kernels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BareRunner:
    """Computes passes: hidden states, then a vector of each text."""

    encoder: NativeEncoder
    made: Made

    def execute(self, batch: PoolingBatch) -> PoolingOutput:
        """Compute the batch; return the vector of each sequence, in order."""
        hidden = self.encoder.hidden_states(batch.sequences)
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is told
            vectors = vectors_of(hidden, batch.sequences, self.made.pooling)
        odd = tuple(place for place, vector in enumerate(vectors) if not np.isfinite(vector).all())
        return PoolingOutput([vector.astype("<f4").tobytes() for vector in vectors], odd)


@dataclass(frozen=True, slots=True)
class BarePooler:
    """An encoder in the host's memory, ready for passes over whole texts."""

    runner: BareRunner
    weights: WeightStore  # owns the memory of all tensors
    load_report: LoadReport
    max_model_len: int
    vocab_size: int
    num_parameters: int
    kernels: Kernels

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(slot.num_bytes for slot in self.weights.layout.slots)

    @property
    def info(self) -> ModelInfo:
        """Return what the front cannot read from files."""
        report, pooling = self.load_report, self.runner.made.pooling
        return ModelInfo(
            self.num_parameters,
            DTYPE,
            report.num_bytes,
            report.seconds,
            compute_path=f"{NATIVE} {self.kernels.name}, without torch",
            vocab_size=self.vocab_size,
            task=self.runner.made.task,
            embedding_size=self.runner.encoder.hidden_size * len(pooling.modes),
            dimensions=pooling.dimensions,
        )


def load_embedder(settings: EngineSettings, device: Device, kernels: Kernels) -> BarePooler:
    """Load a model of which `read_embedder` knows no difference.

    Raises ModelInvalid, …Changed, InvalidSettings, …Memory.
    """
    files = check_model_files(settings.model_path, settings.load_format)
    config, made = read_embedder(settings, files), read_made(settings, files)
    if isinstance(config, Unfit):  # it changed since
        raise InvalidSettings(f"{files.path} needs an engine with torch: {config.reason}")
    max_model_len = resolve_length(config.max_position_embeddings - config.first_position, settings, made)
    plan = plan_plain(shapes_of(config), np.dtype(DTYPE), ())
    weights = reserve(settings, device, plan)
    try:
        report = weights.load(settings.load_format)
        encoder = NativeEncoder(config, weights, plan.maps_in(weights), kernels)
    except BaseException:
        weights.close()
        raise
    logger.info("%s: %s", files.path, report)
    return BarePooler(
        BareRunner(encoder, made),
        weights,
        report,
        max_model_len,
        config.vocab_size,
        plan.num_parameters,
        kernels,
    )
