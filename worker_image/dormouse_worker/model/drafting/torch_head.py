"""Heads where torch computes their model; EAGLE's are the same as by our kernels, see `head`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionBackend, AttentionShape
from dormouse_worker.model.attention.paged import PagedContext
from dormouse_worker.model.context import current_context, forward_context
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.drafting.head import NEVER
from dormouse_worker.model.drafting.load_head import Beside, LoadedHead, load_head
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.kv_cache import CacheSpec, KVCache
from dormouse_worker.model.lean.decoder import angles_of, finish, make_heads, multiply, normed
from dormouse_worker.model.lean.parts import Rotary
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.parallel.communicator import ALONE
from dormouse_worker.model.quantized.modules import computed_dtype
from dormouse_worker.model.states import KeptStates, find_layers
from dormouse_worker.model.to_device import to_device
from dormouse_worker.model.weights.store import WeightStore

Rows = Callable[[torch.Tensor], torch.Tensor]


class TorchHead(Protocol):
    """A head over its model's embedding."""

    @property
    def weight(self) -> torch.Tensor:
        """Return one of its weights, which lies where states have to, and is of their type."""

    def guess(
        self, token_ids: torch.Tensor, positions: torch.Tensor, states: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return own states and logits, [len(rows), H] and [len(rows), V], within a forward context.

        Of tokens [T] and the states before them, the model's or its own.
        """


@dataclass(frozen=True, slots=True)
class EagleHead:
    """Implements `TorchHead`, of either kind; the output matrix is the model's where it has none."""

    loaded: LoadedHead
    rotary: Rotary
    embed: Rows  # vectors [T, H] of tokens [T]
    project: Rows  # logits [rows, V] of the model's states
    targets: torch.Tensor | None  # see `LoadedHead`
    vocab_size: int

    @property
    def weight(self) -> torch.Tensor:
        """See `TorchHead`."""
        weight: torch.Tensor = self.loaded.first.weight
        return weight

    def guess(
        self, token_ids: torch.Tensor, positions: torch.Tensor, states: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TorchHead`."""
        vectors, layer = self.embed(token_ids), self.loaded.layer
        if self.loaded.depths:
            is_own = states.shape[1] != self.loaded.first.weight.shape[1]
            hidden, beside = states if is_own else multiply(self.loaded.first, states), vectors
        else:
            hidden, beside = multiply(self.loaded.first, torch.cat((vectors, states), -1)), None
        heads = make_heads(layer, hidden, angles_of(self.rotary, positions, hidden.dtype), beside)
        attended = current_context().attend(layer.attention.call, *heads).reshape(len(hidden), -1)
        own = finish(layer, hidden[rows], attended[rows], ALONE)
        return own, self._widen(self._logits(own))

    def _logits(self, own: torch.Tensor) -> torch.Tensor:
        output = self.loaded.output
        return self.project(own) if output is None else multiply(output, normed(self.loaded.norm, own))

    def _widen(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits of the model's vocabulary."""
        if self.targets is None:
            return logits
        wide = logits.new_full((len(logits), self.vocab_size), max(NEVER, torch.finfo(logits.dtype).min))
        return wide.index_copy_(1, self.targets, logits)


class TorchPasses:
    """Implements `HeadPasses` in torch. Owns the states of its last pass."""

    def __init__(self, head: TorchHead, cache: KVCache, backend: AttentionBackend, states: KeptStates) -> None:
        """`cache` is the head's part; `states` are of the model's passes."""
        self._head = head
        self._cache = cache
        self._backend = backend
        self._states = states
        self._own = states.rows[:0]

    def __repr__(self) -> str:
        return f"TorchPasses({self._states!r}, attention {self._backend.name})"

    def read(self, packed: PackedInput, token_ids: Ints, states: Ints, rows: Ints) -> torch.Tensor:
        """See `HeadPasses`."""
        return self._compute(packed, token_ids, self._states.rows, states, rows)

    def go_on(self, packed: PackedInput, token_ids: Ints, states: Ints, rows: Ints) -> torch.Tensor:
        """See `HeadPasses`."""
        return self._compute(packed, token_ids, self._own, states, rows)

    @torch.inference_mode()
    def _compute(
        self, packed: PackedInput, token_ids: Ints, states: torch.Tensor, read: Ints, rows: Ints
    ) -> torch.Tensor:
        weight = self._head.weight
        plans = [self._backend.plan(group, weight.device) for group in packed.groups]
        tokens, positions, wanted = (to_device(each, weight.device) for each in (token_ids, packed.positions, rows))
        chosen = states[to_device(read, states.device)].to(weight.device, weight.dtype)
        with forward_context(PagedContext(self._cache, plans)):
            self._own, logits = self._head.guess(tokens, positions, chosen, wanted)
        return logits


@dataclass(frozen=True, slots=True)
class DraftingHead:
    """A head in memory, and what it takes to let it draft."""

    words: str  # whose it is
    config: Path
    target: LoadedModel  # as it lies in one cache with its head's layer
    head: TorchHead
    weights: WeightStore  # owns the memory of the head's tensors
    hidden_size: int
    depths: tuple[int, ...]  # see `KeptStates`
    shape: AttentionShape  # what its layer asks of a backend


def beside(settings: EngineSettings, model: LoadedModel) -> Beside:
    """Return what a head has to go with. Raises InvalidSettings beside images."""
    if model.tower is not None:
        raise InvalidSettings(
            f"speculation_method is {settings.speculation_method}, and the model reads images, which heads do not; "
            "use suffix, or off"
        )
    config = model.module.config.get_text_config()
    return Beside(
        hidden_size=int(config.hidden_size),
        vocab_size=model.vocab_size,
        num_layers=int(config.num_hidden_layers),
        dtype=computed_dtype(model.module),
        quantization=model.quantization,
    )


def load_eagle(settings: EngineSettings, device: Device, model: LoadedModel) -> DraftingHead:
    """Return the settings' head. Raises as `load_head`, and where the model's layers cannot be found."""
    known = beside(settings, model)
    loaded = load_head(settings, device, known)
    try:
        if loaded.depths and model.lean is None:
            find_layers(model.module)
        return _join(settings, model, loaded, known)
    except BaseException:
        loaded.weights.close()
        raise


def _join(settings: EngineSettings, model: LoadedModel, loaded: LoadedHead, known: Beside) -> DraftingHead:
    module: Any = model.module
    targets = None if loaded.targets is None else torch.from_numpy(loaded.targets).to(model.device)
    head = EagleHead(
        loaded=loaded,
        rotary=Rotary(torch.from_numpy(loaded.frequencies).to(model.device), 1.0),
        embed=module.get_input_embeddings(),
        project=module.get_output_embeddings(),
        targets=targets,
        vocab_size=model.vocab_size,
    )
    spec = model.cache_spec.beside(CacheSpec.of((loaded.stored,), settings.block_size))
    return DraftingHead(
        words=f"the head {settings.speculation_model}",
        config=Path(settings.speculation_model) / "config.json",
        target=replace(model, cache_spec=spec),
        head=head,
        weights=loaded.weights,
        hidden_size=known.hidden_size,
        depths=loaded.depths,
        shape=_shape_of(loaded, settings.block_size),
    )


def _shape_of(loaded: LoadedHead, block_size: int) -> AttentionShape:
    """Return what its layer asks of a backend."""
    attention, stored = loaded.layer.attention, loaded.stored
    return AttentionShape(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        key_size=stored.key_size,
        value_size=stored.value_size,
        dtype=stored.dtype,
        block_size=block_size,
        window=attention.call.window,
        is_rounded=stored.is_rounded,
    )
