"""From hidden states to a sequence classifier's numbers: the module's own code behind its backbone, text by text.

Architectures differ in what of a text their heads read, and in the layers. So their own forward is called, with a
stand-in for `self` that answers for the backbone with the hidden states that are there already. Texts of one length go
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.files.head_files import Activation, HeadFiles
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.pooling.attention import PackedContext, runs_of

_PROBE = (0, 1, 0, 1, 0)  # tokens of the text that the head is tried with
_TOLERANCE = 1e-3  # of the module's dtype: a head that reads something else is far off


class ClassifierHead:
    """Implements `runner.Head` with the layers behind a module's backbone. Nothing of it is its own memory."""

    def __init__(self, module: Any, files: HeadFiles) -> None:
        self._module = module
        self._files = files
        self.size = len(files.labels)

    def __repr__(self) -> str:
        return f"ClassifierHead({type(self._module).__name__}, {self.size} labels, {self._files.activation})"

    def outputs(self, hidden: torch.Tensor, sequences: Sequence[PooledSequence]) -> list[torch.Tensor]:
        """Return what each text of rows [T, H] gets: [labels] in host memory, as probabilities if it wants."""
        logits = torch.cat(list(self._logits(hidden, sequences))).float().cpu()
        return [self._finished(row, sequence.params) for row, sequence in zip(logits, sequences, strict=True)]

    def check(self, hidden: torch.Tensor, whole: torch.Tensor) -> None:
        """Raise ModelInvalid unless the probe's hidden states give what the whole module made of it, [1, labels]."""
        found = next(self._logits(hidden, [probe()]))
        name = type(self._module).__name__
        if found.shape != (1, self.size):
            raise ModelInvalid(f"{name} makes {list(found.shape[1:])} numbers; config.json has {self.size} labels")
        if not torch.allclose(found.float(), whole.float(), rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
            raise ModelInvalid(f"{name} makes its numbers of more than its backbone's hidden states")

    def _logits(self, hidden: torch.Tensor, sequences: Sequence[PooledSequence]) -> Iterator[torch.Tensor]:
        token_ids = [token_id for sequence in sequences for token_id in sequence.token_ids]
        tokens = torch.tensor(token_ids, device=hidden.device)
        for run in runs_of([sequence.num_tokens for sequence in sequences]):
            end = run.start + run.count * run.length
            rows = hidden[run.start : end].view(run.count, run.length, -1)
            texts = tokens[run.start : end].view(run.count, run.length)
            for part in range(0, run.count, self._num_at_once(run.count)):
                taken = slice(part, part + self._num_at_once(run.count))
                yield self._behind(rows[taken], texts[taken])

    def _num_at_once(self, count: int) -> int:
        """Return how many texts a head takes: those of decoders look for padding, and take one where there is none."""
        return count if self._module.config.get_text_config().pad_token_id is not None else 1

    def _behind(self, hidden: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the head's numbers [n, labels] of hidden states [n, L, H]."""
        module: Any = _WithHidden(self._module, hidden)
        logits: torch.Tensor = type(self._module).forward(module, input_ids=token_ids, return_dict=True).logits
        return logits

    def _finished(self, row: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return activated(row, self._files.activation) if params.use_activation else row


class _WithHidden:
    """A module as its own forward sees it, where the backbone's answer is known already."""

    def __init__(self, module: Any, hidden: torch.Tensor) -> None:
        self._module = module
        answer = BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden, pooler_output=_pooled(module.base_model, hidden)
        )
        setattr(self, module.base_model_prefix, lambda *_args, **_kwargs: answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _pooled(backbone: Any, hidden: torch.Tensor) -> torch.Tensor | None:
    """Return what the backbone itself makes of a text's first token; None where it makes nothing."""
    pooler = getattr(backbone, "pooler", None)
    if pooler is None:
        return None
    if hasattr(backbone, "pooler_activation"):  # ALBERT's is a bare layer
        activated_rows: torch.Tensor = backbone.pooler_activation(pooler(hidden[:, 0]))
        return activated_rows
    pooled: torch.Tensor = pooler(hidden)
    return pooled


def activated(logits: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return probabilities of one text's numbers; the numbers themselves where there is none."""
    if activation == "softmax":
        return torch.softmax(logits, dim=-1)
    return torch.sigmoid(logits) if activation == "sigmoid" else logits


def probe() -> PooledSequence:
    """Return the text that heads are tried with."""
    return PooledSequence(list(_PROBE), PoolingParams())


@torch.inference_mode()
def whole_logits(module: Any, arguments: dict[str, Any]) -> torch.Tensor:
    """Return what the whole module makes of the probe's arguments, by itself."""
    with forward_context(PackedContext([len(_PROBE)])):
        logits: torch.Tensor = module(**arguments).logits
    return logits
