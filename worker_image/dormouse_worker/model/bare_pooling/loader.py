"""Loads a model for vectors, labels or scores into arrays, and computes passes with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.ipc import NATIVE, ModelInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.pooling.batch import PoolingBatch, PoolingOutput
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.bare.loader import reserve
from dormouse_worker.model.bare.weight_plan import plan_plain
from dormouse_worker.model.bare_pooling.choose import count_labels, read_embedder, stored_type
from dormouse_worker.model.bare_pooling.dense import DenseLayer
from dormouse_worker.model.bare_pooling.dense_files import read_layers
from dormouse_worker.model.bare_pooling.forward import NativeEncoder
from dormouse_worker.model.bare_pooling.gated import GatedConfig
from dormouse_worker.model.bare_pooling.gated_forward import GatedNetwork
from dormouse_worker.model.bare_pooling.head import Head, LabelHead, VectorHead
from dormouse_worker.model.bare_pooling.maps import KernelMaps, KernelNorms
from dormouse_worker.model.bare_pooling.network import NetworkConfig
from dormouse_worker.model.bare_pooling.packed import Rooms
from dormouse_worker.model.device.check import resolve_dtype
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.pooling.made import Made, read_made, resolve_length
from dormouse_worker.model.pooling_steps import PassInSteps, Steps
from dormouse_worker.model.tensors import ARRAY_DTYPES
from dormouse_worker.model.weights.source import LoadReport
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native.library import Kernels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BareRunner:
    """Computes passes: hidden states, then the numbers of each text."""

    network: NativeEncoder | GatedNetwork
    head: Head
    rooms: Rooms = field(default_factory=Rooms)

    def begin(self, batch: PoolingBatch) -> PassInSteps:
        """Return a pass over the batch of which nothing is computed yet."""
        return PassInSteps(self._steps(batch))

    def _steps(self, batch: PoolingBatch) -> Steps:
        with self.rooms.lend() as room:
            hidden = yield from self.network.hidden_states(batch.sequences, room)
            vectors = self.head.outputs(hidden, batch.sequences)
        odd = tuple(place for place, vector in enumerate(vectors) if not np.isfinite(vector).all())
        return PoolingOutput([vector.astype("<f4").tobytes() for vector in vectors], odd)


@dataclass(frozen=True, slots=True)
class BarePooler:
    """A model in the host's memory, ready for passes over whole texts."""

    runner: BareRunner
    weights: WeightStore  # owns the memory of all tensors
    load_report: LoadReport
    made: Made
    max_model_len: int
    vocab_size: int
    dtype: str
    num_parameters: int
    kernels: Kernels

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(slot.num_bytes for slot in self.weights.layout.slots)

    @property
    def info(self) -> ModelInfo:
        """Return what the front cannot read from files."""
        report, pooling = self.load_report, self.made.pooling
        return ModelInfo(
            self.num_parameters,
            self.dtype,
            report.num_bytes,
            report.seconds,
            compute_path=f"{NATIVE} {self.kernels.name}, without torch",
            vocab_size=self.vocab_size,
            task=self.made.task,
            embedding_size=0 if self.made.head else self.runner.head.size,
            dimensions=pooling.dimensions,
            labels=self.made.head.labels if self.made.head else (),
        )


def load_embedder(settings: EngineSettings, device: Device, kernels: Kernels) -> BarePooler:
    """Load a model of which `read_embedder` knows no difference.

    Raises ModelInvalid, …Changed, InvalidSettings, …Memory.
    """
    files = check_model_files(settings.model_path, settings.load_format)
    made = read_made(settings, files)
    config = read_embedder(settings, made.task, files, kernels)
    if isinstance(config, Unfit):  # it changed since
        raise InvalidSettings(f"{files.path} needs an engine with torch: {config.reason}")
    max_model_len = resolve_length(config.max_length, settings, made)
    stored = stored_type(config, files)
    plan = plan_plain(config.shapes(count_labels(made)), ARRAY_DTYPES[stored], ())
    weights = reserve(settings, device, plan)
    try:
        report = weights.load(settings.load_format)
        maps = KernelMaps(plan.maps_in(weights), stored, kernels)
        norms = KernelNorms(weights, kernels, config.eps)
        runner = BareRunner(_network(config, weights, maps, kernels), _head(config, made, maps, norms))
    except BaseException:
        weights.close()
        raise
    logger.info("%s: %s", files.path, report)
    return BarePooler(
        runner,
        weights,
        report,
        made,
        max_model_len,
        config.vocab_size,
        resolve_dtype(settings.dtype, files.config) or stored,
        plan.num_parameters,
        kernels,
    )


def _network(
    config: NetworkConfig, weights: WeightStore, maps: KernelMaps, kernels: Kernels
) -> NativeEncoder | GatedNetwork:
    if isinstance(config, GatedConfig):
        return GatedNetwork(config, weights, maps, kernels)
    return NativeEncoder(config, weights, maps, kernels)


def _head(config: NetworkConfig, made: Made, maps: KernelMaps, norms: KernelNorms) -> Head:
    """Return what stands behind the hidden states. Raises ModelInvalid."""
    if made.head is not None:
        return LabelHead(config.head, config.padding, made.head, maps, norms)
    found = read_layers(made.pooling.dense, config.hidden_size * len(made.pooling.modes))
    if isinstance(found, Unfit):  # it changed since
        raise ModelInvalid(found.reason)
    return VectorHead(made.pooling, config.hidden_size, [DenseLayer(layer, maps.kernels) for layer in found])
