"""What forbidding tokens means, in torch and on the host alike."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.model.sampling.sampling_row import TokenIds

FORBIDDEN = float("-inf")
NOTHING_LEFT = (
    "nothing that the grammar allows is left by allowed_token_ids and bad_words, or in the model's vocabulary"
)


def bad_word_endings(bad_words: Sequence[Sequence[int]], output_token_ids: TokenIds) -> list[int]:
    """Return the last token of every word whose other tokens are the end of the output.

    As in vLLM the prompt does not count: a word that it began may be completed.
    """
    longest = max(len(word) for word in bad_words)
    tail = tuple(output_token_ids[max(0, len(output_token_ids) - longest + 1) :])
    return [word[-1] for word in bad_words if word and tuple(word[:-1]) == tail[max(0, len(tail) - len(word) + 1) :]]
