"""From the tokens of a window to segments of the sound, and where the next window begins. Pure.

    <|0.00|> one <|2.10|><|2.10|> two <|4.00|><|4.00|> thr        two segments; go on at 4.00
    <|0.00|> one <|2.10|><|2.10|> two <|4.00|>                    two segments; nothing is said behind 4.00
    <|0.00|> one                                                  one segment, the whole window

As transformers cuts them, and the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dormouse_worker.files.speech_files import FRAMES_A_POSITION, FRAMES_A_SECOND, SECONDS_A_TIMESTAMP, SpeechSpec


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of what is said, in seconds of the whole sound."""

    start_s: float
    end_s: float
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Span:
    """A window, in frames of the whole sound."""

    first: int
    count: int

    @property
    def start_s(self) -> float:
        """Return where it begins."""
        return self.first / FRAMES_A_SECOND


@dataclass(frozen=True, slots=True)
class Cut:
    """What a window came to."""

    segments: list[Segment]
    num_frames: int  # that are done: the next window begins behind them


def cut(token_ids: Sequence[int], window: Span, spec: SpeechSpec) -> Cut:
    """Return the segments of a window's tokens, their end left out."""
    is_time = [token >= spec.timestamp_begin for token in token_ids]
    ends = [place + 1 for place in range(len(is_time) - 1) if is_time[place] and is_time[place + 1]]
    if not ends:
        return Cut(_whole(token_ids, window, spec), window.count)
    ends_in_silence = is_time[-2:] == [False, True]
    if ends_in_silence:
        ends.append(len(token_ids))
    else:
        ends[-1] += 1
    segments, begin = [], 0
    for number, end in enumerate(ends, start=1):
        piece = list(token_ids[begin:end])
        last = piece[-2] if number == len(ends) and not ends_in_silence else piece[-1]
        segments.append(Segment(_at(piece[0], window, spec), _at(last, window, spec), piece))
        begin = end
    if ends_in_silence:
        return Cut(segments, window.count)
    return Cut(segments, (token_ids[begin - 2] - spec.timestamp_begin) * FRAMES_A_POSITION)


def _whole(token_ids: Sequence[int], window: Span, spec: SpeechSpec) -> list[Segment]:
    """Return a segment of all tokens; it ends at the last time that is told, else with the window."""
    if not token_ids:
        return []
    last = next((token for token in reversed(token_ids) if token >= spec.timestamp_begin), spec.timestamp_begin)
    length_s = window.count / FRAMES_A_SECOND
    end_s = window.start_s + length_s if last == spec.timestamp_begin else _at(last, window, spec)
    return [Segment(window.start_s, end_s, list(token_ids))]


def _at(token: int, window: Span, spec: SpeechSpec) -> float:
    return window.start_s + (token - spec.timestamp_begin) * SECONDS_A_TIMESTAMP
