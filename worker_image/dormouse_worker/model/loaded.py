"""A model, or a rank's part of it, on its device: what a load ends with and passes are made of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import NONE
from dormouse_worker.common.sides import Sides
from dormouse_worker.model.adapters.store import AdapterStore
from dormouse_worker.model.attention.interface import AttentionShape
from dormouse_worker.model.kv_cache import CacheSpec
from dormouse_worker.model.lean.arriving import arriving
from dormouse_worker.model.lean.decoder import LeanDecoder
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.parallel.stages import send_stage
from dormouse_worker.model.quantized.modules import computed_dtype
from dormouse_worker.model.sleep import SleepPart
from dormouse_worker.model.states import KeptStates, overheard
from dormouse_worker.model.vision.placed import ImageRows, Seen, put_rows
from dormouse_worker.model.vision.text_part import text_logits
from dormouse_worker.model.vision.tower import ImageTower
from dormouse_worker.model.weights.source import LoadReport
from dormouse_worker.model.weights.store import WeightStore


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, or a rank's part of it, on its device, ready for packed forward passes."""

    module: Any  # a transformers causal language model
    lean: LeanDecoder | None  # computes instead of the module, with the same weights, where it fits
    native: NativeDecoder | Unfit  # computes instead of `lean` the passes that fit it
    cache_spec: CacheSpec
    device: torch.device
    max_model_len: int
    vocab_size: int
    weights: WeightStore  # owns the memory of all of the module's tensors
    load_report: LoadReport
    attention_shapes: tuple[AttentionShape, ...]  # what its layers ask of a backend
    layout: Layout  # which part of the model it is
    num_parameters: int  # of the whole model
    adapters: AdapterStore | None = None  # the memory of LoRA adapters; None = there are none
    quantization: str = NONE  # how the weights of its linear maps lie
    tower: ImageTower | None = None  # what makes rows of images; None = it reads none
    image_rows: int = 0  # of encoded images, that are kept
    images_are_whole: bool = False  # an image's tokens see each other
    image_merge: int = 0  # patches along an axis that make one row, where positions have three axes; 0 = they have one
    sides: Sides | None = None  # where an encoder reads the prompts

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of all parameters and buffers, shared ones once."""
        return sum(slot.num_bytes for slot in self.weights.layout.slots)

    @property
    def impl(self) -> str:
        """Return whose forward pass computes: `lean` or `transformers`."""
        return "transformers" if self.lean is None else "lean"

    def see(self, token_ids: torch.Tensor, images: Sequence[ImageRows]) -> Seen:
        """Return what a pass with images begins with: embedded tokens, and rows of images in place of some of them."""
        self.weights.arrive()
        return put_rows(self.module.get_input_embeddings()(token_ids), images)

    def compute_logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        images: Sequence[ImageRows] = (),
        states: KeptStates | None = None,
    ) -> torch.Tensor:
        """Return logits [len(rows), V] of a packed batch: token_ids and positions [T], ascending rows that are wanted.

        Positions in time, height and width are [3, T]. `states` keeps those of all rows for a head.

        In torch, by our own decoder or by transformers' module. Attention is answered by the forward context, in which
        every call must lie. What is not the last stage sends its hidden states to the next one instead, and returns
        nobody's logits, [0, …].
        """
        seen = self.see(token_ids, images) if images else None
        lean = self._ready()
        if lean is not None:
            return lean.forward(token_ids, positions, rows, seen, states)
        begins = {"input_ids": token_ids[None]} if seen is None else {"inputs_embeds": seen.embedded[None]}
        arguments = {**begins, "position_ids": positions[..., None, :], "use_cache": False}
        if not self.layout.is_last_stage:
            return send_stage(self.module, arguments)[0, :0]
        deep = None if seen is None else seen.deep
        if deep is not None or (self.tower is not None and self.tower.family.keeps_all_logits):
            return text_logits(self.module, arguments, rows, deep)
        with nullcontext() if states is None else overheard(self.module, states):
            logits: torch.Tensor = self.module(**arguments, logits_to_keep=rows).logits[0]
        return logits

    @property
    def sleep_parts(self) -> tuple[SleepPart, ...]:
        """Return what sleeps with the tag of the weights, in the order in which it wakes."""
        return (self.weights,) if self.adapters is None else (self.weights, self.adapters)

    def close(self) -> None:
        """Give the memory back; the model must not be used any more."""
        self.weights.close()
        if self.adapters is not None:
            self.adapters.close()

    def for_profile(self) -> LoadedModel:
        """Return a model whose passes take as much memory: of our kernels' pass fewer layers, any other as it is."""
        native = self.native
        return replace(self, native=native.shortened()) if isinstance(native, NativeDecoder) else self

    def _ready(self) -> LeanDecoder | None:
        """Return our own forward pass, which waits layer by layer while weights arrive; others wait here for all."""
        if not self.weights.is_arriving:
            return self.lean
        if self.lean is None:
            self.weights.arrive()
            return None
        return arriving(self.lean, self.weights.wait_for)

    @property
    def info(self) -> ModelInfo:
        """Return what the front cannot read from files."""
        dtype = str(computed_dtype(self.module)).removeprefix("torch.")
        report = self.load_report
        known = self.num_parameters, dtype, report.num_bytes, report.seconds
        return ModelInfo(*known, vocab_size=self.vocab_size, sides=self.sides)
