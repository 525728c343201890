"""The few computations in which ranks of one stage need each other. Ask the communicator nothing where T is one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from dormouse_worker.model.parallel.communicator import Communicator
from dormouse_worker.model.parallel.shards import Vocabulary


def row_linear(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    group: Communicator,
    *,
    adapt: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return [..., out] for the rank's columns of the input [..., in] and of the weight [out, in]; bias is whole.

    `adapt` adds to the rank's product what adapters make of its columns: one sum over the ranks has both.
    """
    if group.layout.tensor == 1:
        return adapt(functional.linear(rows, weight, bias))
    total = group.all_reduce(adapt(functional.linear(rows, weight)))
    return total if bias is None else total + bias


def locate_tokens(token_ids: torch.Tensor, vocabulary: Vocabulary) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row of each token in the rank's part of the embedding, and which lie with other ranks (row 0)."""
    is_elsewhere = (token_ids < vocabulary.start) | (token_ids >= vocabulary.stop)
    return (token_ids - vocabulary.start).masked_fill(is_elsewhere, 0), is_elsewhere


def merge_embedded(embedded: torch.Tensor, is_elsewhere: torch.Tensor, group: Communicator) -> torch.Tensor:
    """Return every token's embedding [..., H]: exact, as all ranks but one add zeros."""
    return group.all_reduce(embedded.masked_fill(is_elsewhere[..., None], 0))


def gather_logits(logits: torch.Tensor, vocabulary: Vocabulary, group: Communicator) -> torch.Tensor:
    """Return logits [..., V] on the rank that samples from all ranks' own parts of them; elsewhere nobody's."""
    missing = vocabulary.share - logits.shape[-1]
    padded = functional.pad(logits, (0, missing)) if missing else logits
    return group.gather(padded)[..., : vocabulary.size]
