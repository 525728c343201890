"""Whether the files of a model for vectors, labels or scores are what is computed without torch. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.common.tasks import HEADS
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.model.bare.choose import STORED, odd_tensors
from dormouse_worker.model.bare_pooling.dense_files import read_layers
from dormouse_worker.model.bare_pooling.network import NetworkConfig, read_network
from dormouse_worker.model.device.check import resolve_dtype
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.pooling.made import Made, read_made
from dormouse_worker.native.library import Kernels


def read_embedder(settings: EngineSettings, task: str, files: ModelFiles, kernels: Kernels) -> NetworkConfig | Unfit:
    """Return the sizes of a model whose files are what is computed without torch, or where they differ."""
    config = read_network(files.config, files.tensors, has_head=task in HEADS)
    if isinstance(config, Unfit):
        return config
    reason = next(_differences(settings, config, files, kernels), None)
    return config if reason is None else Unfit(reason)


def stored_type(config: NetworkConfig, files: ModelFiles) -> str:
    """Return the type of the files' weights, bfloat16 or float32; where they have others, they are not read here."""
    words = files.tensors.get(config.words)
    return "bfloat16" if words is not None and words.dtype == STORED["bfloat16"] else "float32"


def count_labels(made: Made) -> int:
    """Return how many labels a classifier's head has, 0 where there is no head."""
    return 0 if made.head is None else len(made.head.labels)


def _differences(settings: EngineSettings, config: NetworkConfig, files: ModelFiles, kernels: Kernels) -> Iterator[str]:
    if files.gguf is not None:
        yield "its weights lie in a GGUF file"
    if settings.quantization != NONE:
        yield f"quantization is {settings.quantization}"
    stored, wanted = stored_type(config, files), resolve_dtype(settings.dtype, files.config)
    if wanted not in ("float32", stored, ""):  # what is computed is float32 of either
        yield f"its type is {wanted}"
    if stored == "bfloat16" and kernels.multiplies_bfloat16:
        yield "its weights are bfloat16, which this processor multiplies, and transformers' module is faster then"
    made = read_made(settings, files)
    shapes = config.shapes(count_labels(made))
    yield from odd_tensors(shapes, files.tensors, STORED[stored], config.unused - shapes.keys())
    layers = read_layers(made.pooling.dense, config.hidden_size * len(made.pooling.modes))
    if isinstance(layers, Unfit):
        yield layers.reason
