"""Which tokens may come next in a window, as transformers' and the original's rules say.

Times come in pairs, but for the end: `<|0.00|> words <|2.10|><|2.10|> more words <|4.00|>`; they never decrease, and
where all of them together are likelier than any word, a time is next.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dormouse_worker.engine.speech.batch import SpeechRow
from dormouse_worker.files.speech_files import SpeechSpec

_NEVER = -float("inf")


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Owns nothing: a model's tokens."""

    spec: SpeechSpec

    def apply(self, logits: torch.Tensor, row: SpeechRow) -> None:
        """Set what is forbidden to -inf, in place, in logits [V] of float32."""
        if row.language_ids:
            _keep_only(logits, row.language_ids)
            return
        output = row.token_ids[row.num_prompt :]
        if not output:
            logits[list(self.spec.suppressed_first)] = _NEVER
        logits[list(self.spec.suppressed)] = _NEVER
        if row.timestamps:
            self._pair_times(logits, output)
            self._prefer_times(logits)

    def _pair_times(self, logits: torch.Tensor, output: list[int]) -> None:
        begin = self.spec.timestamp_begin
        logits[self.spec.no_timestamps] = _NEVER
        if not output:
            logits[:begin] = _NEVER
            if self.spec.max_initial_timestamp is not None:
                logits[begin + self.spec.max_initial_timestamp + 1 :] = _NEVER
            return
        last_is_time = output[-1] >= begin
        time_before_last = len(output) < 2 or output[-2] >= begin
        if last_is_time and time_before_last:
            logits[begin:] = _NEVER
        elif last_is_time:
            logits[: self.spec.eos] = _NEVER
        times = [token for token in output if token >= begin]
        if times:  # one that opens a pair may be that which closed the last; else none comes twice
            logits[begin : times[-1] + (not (last_is_time and not time_before_last))] = _NEVER

    def _prefer_times(self, logits: torch.Tensor) -> None:
        begin = self.spec.timestamp_begin
        logprobs = torch.log_softmax(logits, dim=-1)
        if logprobs[begin:].logsumexp(dim=-1) > logprobs[:begin].max():
            logits[:begin] = _NEVER


def _keep_only(logits: torch.Tensor, token_ids: tuple[int, ...]) -> None:
    kept = logits[list(token_ids)].clone()
    logits.fill_(_NEVER)
    logits[list(token_ids)] = kept
