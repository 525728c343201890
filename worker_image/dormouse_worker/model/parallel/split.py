"""Divides a module's tensors over the ranks of a stage, and lets it call the other ranks where it needs them.

The modules keep their classes: only their tensors shrink, and where ranks meet `forward` is another one. Such a module
asks its `adapt` for what adapters add to its own product, before ranks meet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.layout import Layout
from dormouse_worker.model.context import current_communicator
from dormouse_worker.model.parallel.layers import gather_logits, locate_tokens, merge_embedded, row_linear
from dormouse_worker.model.parallel.plans import OWN_PLANS, ROWWISE, planned_modules
from dormouse_worker.model.parallel.shards import Spans, Vocabulary, even, heads, num_indices, packed
from dormouse_worker.model.parallel.stages import is_here
from dormouse_worker.model.quantized.modules import QuantizedEmbedding, QuantizedLinear

KEY_VALUE = frozenset({"k_proj", "v_proj"})
NUM_PACKED = 2  # gate and up


class Splitter:
    """Owns what was divided how: by the identity of the small tensor that stands for a part."""

    def __init__(self, module: Any, layout: Layout) -> None:
        self.pieces: dict[int, tuple[int, Spans]] = {}  # of a new tensor: dimension and spans of the old one
        self._replaced: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # old, which it keeps alive, and new
        self._module, self._layout = module, layout
        self._config = module.config.get_text_config()
        self._num_kv_heads = getattr(self._config, "num_key_value_heads", None) or self._config.num_attention_heads

    def __repr__(self) -> str:
        return f"Splitter({len(self.pieces)} pieces of {type(self._module).__name__})"

    def split(self) -> None:
        """Divide everything that is here. Raises InvalidSettings with the numbers that do not fit."""
        self._check_heads()
        own = OWN_PLANS.get(type(self._module).__name__)
        ends = (self._module.get_input_embeddings(), self._module.get_output_embeddings())
        for name, style in list(planned_modules(self._module, ends, self._layout.tensor)):
            part = self._module.get_submodule(name)
            if is_here(part):
                self._split_linear(name, part, style, NUM_PACKED if own is None else own.num_packed)
        self._split_ends(*ends)
        if own is not None:
            own.adapt(self._module, self._layout.tensor)

    def _check_heads(self) -> None:
        tensor, config = self._layout.tensor, self._config
        refused = f"tensor_parallel_size is {tensor}; {type(self._module).__name__} has"
        if config.num_attention_heads % tensor:
            raise InvalidSettings(f"{refused} {config.num_attention_heads} attention heads, which it must divide")
        if self._num_kv_heads % tensor and tensor % self._num_kv_heads:
            raise InvalidSettings(f"{refused} {self._num_kv_heads} key-value heads; one must divide the other")

    def _split_linear(self, name: str, part: Any, style: str, num_packed: int) -> None:
        if type(part) not in (nn.Linear, Conv1D, QuantizedLinear):
            raise InvalidSettings(
                f"tensor_parallel_size is {self._layout.tensor}; {name} is a {type(part).__name__}, which cannot be "
                "divided; set it to 1"
            )
        out_dim = 1 if isinstance(part, Conv1D) else 0
        if style.startswith(ROWWISE):
            spans = self._inputs(name, part, part.weight.shape[1 - out_dim])
            self._slice(part, "weight", 1 - out_dim, spans)
            if isinstance(part, QuantizedLinear):
                part.in_features = num_indices(spans)
            _sum_up(part, splits_input=style == "rowwise_split_input")
            return
        spans = self._outputs(name, part.weight.shape[out_dim], style, num_packed)
        self._slice(part, "weight", out_dim, spans)
        self._slice(part, "weight_scale", 0, spans)
        self._slice(part, "bias", 0, spans)
        setattr(part, "out_features" if out_dim == 0 else "nf", num_indices(spans))
        if style == "colwise_gather_output":
            _gather_output(part)

    def _outputs(self, name: str, size: int, style: str, num_packed: int) -> Spans:
        if style == "packed_colwise":
            self._even(name, size // num_packed)
            return packed(size, num_packed, self._layout)
        if style == "colwise" and name.rpartition(".")[2] in KEY_VALUE:
            return heads(size, self._num_kv_heads, self._layout)
        return self._even(name, size)

    def _inputs(self, name: str, part: Any, size: int) -> Spans:
        """Return the rank's inputs; `size` is how many a plain map has."""
        if not isinstance(part, QuantizedLinear):
            return self._even(name, size)
        spans, unit = self._even(name, part.in_features), part.format.unit(part.in_features)
        if num_indices(spans) % unit:
            raise InvalidSettings(
                f"tensor_parallel_size is {self._layout.tensor}; {name} has {part.in_features} inputs of "
                f"{part.format.name}, {num_indices(spans)} for each rank, and {unit} of them lie together; set it so "
                "that each rank has a multiple of that, or quantization to none"
            )
        return spans

    def _even(self, name: str, size: int) -> Spans:
        if size % self._layout.tensor:
            raise InvalidSettings(f"tensor_parallel_size is {self._layout.tensor}; {name} has {size} rows to divide")
        return even(size, self._layout)

    def _split_ends(self, embedding: Any, head: Any) -> None:
        """Divide embedding and head by the vocabulary."""
        vocabulary = Vocabulary(int(self._config.vocab_size), self._layout)
        if vocabulary.start == vocabulary.stop:
            raise InvalidSettings(
                f"tensor_parallel_size is {self._layout.tensor}; a vocabulary of {vocabulary.size} tokens leaves none "
                f"to tensor rank {self._layout.tensor_rank}"
            )
        spans = ((vocabulary.start, vocabulary.stop),)
        kinds = (nn.Embedding | QuantizedEmbedding, _merge), (nn.Linear | QuantizedLinear, _gather_head)
        for part, (base, adapt) in zip((embedding, head), kinds, strict=True):
            if not is_here(part):
                continue
            if not isinstance(part, base) or len(part.weight) != vocabulary.size:
                raise InvalidSettings(
                    f"tensor_parallel_size is {self._layout.tensor}; a {type(part).__name__} of {len(part.weight)} "
                    f"rows cannot be divided by a vocabulary of {vocabulary.size}; set it to 1"
                )
            self._slice(part, "weight", 0, spans)
            self._slice(part, "weight_scale", 0, spans)
            self._slice(part, "bias", 0, spans)
            adapt(part, vocabulary)

    def _slice(self, part: Any, name: str, dim: int, spans: Spans) -> None:
        """Put a stand-in for the rank's part in the place of a parameter, the same one wherever the parameter was."""
        old = getattr(part, name, None)
        if old is None:
            return
        if id(old) not in self._replaced:
            shape = [num_indices(spans) if i == dim else size for i, size in enumerate(old.shape)]
            if name == "weight" and dim == 1 and isinstance(part, QuantizedLinear):
                shape[1] = part.format.row_bytes(num_indices(spans))
            new = nn.Parameter(torch.zeros((), dtype=old.dtype).expand(shape), requires_grad=False)
            self._replaced[id(old)] = (old, new)
            self.pieces[id(new)] = (dim, spans)
        setattr(part, name, self._replaced[id(old)][1])


def _sum_up(part: Any, *, splits_input: bool) -> None:
    def forward(rows: torch.Tensor) -> torch.Tensor:
        group = current_communicator()
        if splits_input:
            rows = rows.chunk(group.layout.tensor, -1)[group.layout.tensor_rank]
        operands = part.operands(rows) if isinstance(part, QuantizedLinear) else (rows, _weight_of(part))
        return row_linear(*operands, part.bias, group, adapt=lambda out: part.adapt(out, rows))

    part.forward, part.adapt = forward, _as_it_is


def _weight_of(part: Any) -> torch.Tensor:
    weight: torch.Tensor = part.weight.t() if isinstance(part, Conv1D) else part.weight
    return weight


def _gather_output(part: Any) -> None:
    inner = part.forward

    def forward(rows: torch.Tensor) -> torch.Tensor:
        return current_communicator().all_gather(part.adapt(inner(rows), rows))

    part.forward, part.adapt = forward, _as_it_is


def _as_it_is(out: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return out


def _merge(embedding: Any, vocabulary: Vocabulary) -> None:
    inner = embedding.forward

    def forward(token_ids: torch.Tensor) -> torch.Tensor:
        ids, is_elsewhere = locate_tokens(token_ids, vocabulary)
        return merge_embedded(inner(ids), is_elsewhere, current_communicator())

    embedding.forward = forward


def _gather_head(head: Any, vocabulary: Vocabulary) -> None:
    inner = head.forward

    def forward(rows: torch.Tensor) -> torch.Tensor:
        return gather_logits(inner(rows), vocabulary, current_communicator())

    head.forward = forward
