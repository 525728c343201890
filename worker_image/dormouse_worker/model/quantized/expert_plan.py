"""Which tensors of an MXFP4 checkpoint a module's are made from; everything is accounted for, or refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.quantized.modules import EXPERT_MAPS, PackedExperts
from dormouse_worker.model.quantized.mxfp4 import BLOCK, BLOCK_BYTES, CHUNK_BYTES, MOST_SCALE, NAME, pack
from dormouse_worker.model.quantized.pieces import put
from dormouse_worker.model.quantized.stored_plan import is_plain, not_there
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.reader import CheckpointSource
from dormouse_worker.model.weights.skeleton import Skeleton, find_origins, iter_tensors
from dormouse_worker.model.weights.source import Read
from dormouse_worker.model.weights.strangers import Places

logger = logging.getLogger(__name__)

EXPERTS = "GptOssExperts"  # transformers' class; others of its kind multiply or clip differently
DTYPES = (torch.float32, torch.bfloat16)
_STEP = 1 << 14  # chunks that are packed at a time

Stored = Mapping[str, StoredTensor]


class ExpertSource:
    """Implements `WeightSource` with chunks, over a source that knows the names of blocks and scales too."""

    path: Literal["fast"] = "fast"
    held_bytes = 0

    def __init__(self, source: CheckpointSource, packed: frozenset[str]) -> None:
        """`packed` are the slots that are chunks; all others are the source's."""
        self._source, self._packed = source, packed

    def __repr__(self) -> str:
        return f"ExpertSource({len(self._packed)} maps, {self._source!r})"

    def origin(self, name: str) -> str:
        """See `WeightSource`."""
        return self._source.origin(_blocks(name) if name in self._packed else name)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        with self._source.open() as read_stored:

            def read(slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
                if slot.name not in self._packed:
                    read_stored(slot, start, end, target)
                    return
                for first in range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES), _STEP):
                    last = min(first + _STEP, -(-end // CHUNK_BYTES))
                    chunks = torch.from_numpy(pack(*self._stored(read_stored, slot, first, last)))
                    put(chunks, first * CHUNK_BYTES - start, target)

            yield read

    def _stored(self, read: Read, slot: Slot, first: int, end: int) -> tuple[Any, Any]:
        """Return blocks [n, 16] and scales [n] of some chunks. Raises ModelInvalid for a scale that is none."""
        blocks = torch.empty(end - first, BLOCK_BYTES, dtype=torch.uint8)
        scales = torch.empty(end - first, dtype=torch.uint8)
        num_chunks = slot.num_bytes // CHUNK_BYTES
        of_blocks = Slot(_blocks(slot.name), 0, (num_chunks, BLOCK_BYTES), torch.uint8)
        of_scales = Slot(_scales(slot.name), 0, (num_chunks,), torch.uint8)
        read(of_blocks, first * BLOCK_BYTES, end * BLOCK_BYTES, blocks.view(-1))
        read(of_scales, first, end, scales)
        largest = int(scales.max())
        if largest > MOST_SCALE:
            raise ModelInvalid(
                f"{self._source.origin(of_scales.name)} holds {largest}, and weights must be finite numbers, for which "
                f"{MOST_SCALE} is the most: copy the file again"
            )
        return blocks.numpy(), scales.numpy()


def plan_experts(
    skeleton: Skeleton,
    stored: Stored,
    checkpoint: Callable[[Mapping[str, str]], CheckpointSource],
) -> ExpertSource:
    """Return a source of the skeleton's tensors, whose experts become packed ones; `checkpoint` reads by slots' names.

    Raises ModelInvalid for what is missing, has another shape or type, or has no place in the model, and
    InvalidSettings for a type in which weights would not be exact.
    """
    origins = find_origins(skeleton)
    packed = {f"{path}.{name}" for path in _paths(skeleton.module) for name in EXPERT_MAPS}
    if origins is None or not packed:
        raise ModelInvalid(
            f"config.json: quantization_config is {NAME}, which is read as gpt-oss's experts have it, and "
            f"{type(skeleton.module).__name__} has none; use the model's plain weights"
        )
    names: dict[str, str] = {}
    for name, tensor in iter_tensors(skeleton.module):
        if name in packed:
            _check_packed(name, tensor, stored)
            names.update({part: part for part in (_blocks(name), _scales(name))})
        elif name in origins:
            if not is_plain(origins[name], tensor, stored):
                raise not_there(origins[name])
            names[name] = origins[name]
    Places(skeleton.module).check_strangers(stored.keys() - set(names.values()), stored)
    pack_experts(skeleton.module)
    logger.info("%s: %d maps of experts keep 4 bits", NAME, len(packed))
    return ExpertSource(checkpoint(names), frozenset(packed))


def has_packed_experts(config: Any, device: Device) -> bool:
    """Return whether experts are read here; on devices with kernels of transformers' quantizer it loads them."""
    said = getattr(config, "quantization_config", None)
    return isinstance(said, Mapping) and said.get("quant_method") == NAME and device.torch_device.type == "cpu"


def keep_saved_experts(module: Any, saved: Stored) -> None:
    """Put packed experts in place where a sharded state has them."""
    found = (saved.get(f"{path}.{EXPERT_MAPS[0]}") for path in _paths(module))
    if any(tensor is not None and tensor.dtype == "U8" for tensor in found):
        pack_experts(module)


def pack_experts(module: Any) -> None:
    """Put packed experts in the place of all plain ones. Raises InvalidSettings for a type that is not exact."""
    for path in _paths(module):
        plain = module.get_submodule(path)
        if plain.down_proj.dtype not in DTYPES:
            raise InvalidSettings(
                f"dtype is {str(plain.down_proj.dtype).removeprefix('torch.')}, and weights in {NAME} are read in "
                "bfloat16 or float32, in which they are exact; set dtype to bfloat16"
            )
        module.set_submodule(path, PackedExperts(plain))


def _paths(module: Any) -> list[str]:
    return [path for path, part in module.named_modules() if type(part).__name__ == EXPERTS]


def _check_packed(name: str, plain: torch.Tensor, stored: Stored) -> None:
    num_experts, columns, num_outputs = plain.shape
    if columns % BLOCK:
        raise ModelInvalid(
            f"config.json: {name} has {columns} inputs, which is no multiple of {BLOCK}, as {NAME} needs"
        )
    scales = (num_experts, num_outputs, columns // BLOCK)
    for part, shape in ((_blocks(name), (*scales, BLOCK_BYTES)), (_scales(name), scales)):
        found = stored.get(part)
        if found is None:
            raise ModelInvalid(
                f"{part} is not in the files; config.json says {NAME}: copy the files again, or the config.json that "
                "belongs to them"
            )
        if (found.dtype, found.shape) != ("U8", shape):
            raise ModelInvalid(
                f"{found.file}: tensor {part} is {found.dtype} {list(found.shape)}, and config.json asks for U8 "
                f"{list(shape)}; copy the config.json that belongs to these weights"
            )


def _blocks(name: str) -> str:
    return f"{name}_blocks"


def _scales(name: str) -> str:
    return f"{name}_scales"
