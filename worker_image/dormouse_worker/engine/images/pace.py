"""How many rows of prompts with images go into a pass beside text. Knows no request.

Between passes an encoder has a share of their time. The prompts of its images have the same share, in turns with it: a
pass has rows of theirs, or the encoder has time behind it. So whatever is asked of images, tokens of text come so much
further apart and no more.

What rows cost is not told by their number: the first ones are almost free where weights are read from memory. So there
are more of them next time if a pass with as many as it might have took no longer than it may, and fewer if it did. A
machine that was busy elsewhere for one pass changes little.
"""

from __future__ import annotations

from dormouse_worker.engine.batch import Batch

SHARE = 0.25  # of the time of passes, on top of it: tokens of text come 1.25 times as far apart
FIRST_ROWS = 16  # before anything was measured
FEWEST_ROWS = 8  # a prompt ends some time, also beside a single sequence, whose pass any row more makes another one
_STEP = 1.1  # from one estimate to the next


class Pace:
    """Owns what passes took of late, and whose turn it is."""

    def __init__(self) -> None:
        self._rows = float(FIRST_ROWS)
        self._plain_s = 0.0  # of a pass that only decodes; 0 = there was none
        self._is_encoders_turn = False

    def __repr__(self) -> str:
        return f"Pace({self._rows:.0f} rows, {self._plain_s * 1e3:.1f} ms)"

    @property
    def most_rows(self) -> int:
        """Return how many rows the next pass may have."""
        return 0 if self._is_encoders_turn else int(self._rows)

    def begin(self, num_rows: int, *, encodes: bool) -> None:
        """A pass has so many; `encodes` = an image is under way beside it."""
        self._is_encoders_turn = encodes and num_rows > 0

    def note(self, batch: Batch, seconds: float) -> None:
        """A pass took so long, and what was encoded behind the one before."""
        num_rows = sum(each.num_tokens for each in batch.sequences if each.num_known - each.start > 1)
        if not num_rows:
            seen_s = seconds if batch.ahead is None else seconds / (1 + SHARE)
            self._plain_s = min(max(seen_s, self._plain_s / _STEP), self._plain_s * _STEP or seen_s)
        elif self._plain_s and num_rows == batch.num_image_rows == int(self._rows):
            is_short = seconds <= (1 + SHARE) * self._plain_s
            self._rows = self._rows * _STEP if is_short else max(self._rows / _STEP, FEWEST_ROWS)
