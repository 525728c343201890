"""Whether what was heard in a window is good enough, or the next temperature is to be tried. Pure.

As the original and transformers: too many repetitions, by how far the tokens compress, or too little confidence ask for
another try; little confidence where the model says that nobody speaks is silence.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from dormouse_worker.common.task_messages import WindowParams


@dataclass(frozen=True, slots=True)
class Quality:
    """What an output is measured by."""

    avg_logprob: float  # over its tokens, the end included
    compression_ratio: float
    no_speech_prob: float

    def is_silence(self, params: WindowParams) -> bool:
        """Return whether nobody speaks."""
        limit, unsure = params.no_speech_threshold, params.logprob_threshold
        return limit is not None and unsure is not None and self.avg_logprob < unsure and self.no_speech_prob > limit

    def is_poor(self, params: WindowParams) -> bool:
        """Return whether it should be tried again, if there is a way."""
        most, unsure = params.compression_ratio_threshold, params.logprob_threshold
        repeats = most is not None and self.compression_ratio > most
        return (repeats or (unsure is not None and self.avg_logprob < unsure)) and not self.is_silence(params)


def compression_ratio(token_ids: Sequence[int], bytes_per_token: int) -> float:
    """Return how many times shorter zlib makes the tokens' bytes."""
    raw = b"".join(token_id.to_bytes(bytes_per_token, "little") for token_id in token_ids)
    return len(raw) / len(zlib.compress(raw))
