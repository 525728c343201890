"""What was heard as clients want it: one object, plain text, subtitles, or events. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.audio.schemas import JSON, SRT, TEXT, VERBOSE, VTT

END_MARK = b"data: [DONE]\n\n"
TYPES = {JSON: "application/json", VERBOSE: "application/json", TEXT: "text/plain; charset=utf-8"} | dict.fromkeys(
    (SRT, VTT), "text/plain; charset=utf-8"
)


@dataclass(slots=True)
class Heard:
    """Everything that messages said so far."""

    language: str = ""
    duration_s: float = 0.0
    segments: list[pb.TranscribeSegment] = field(default_factory=list)
    usage: pb.Usage | None = None

    def take(self, raw: bytes) -> str:
        """Add a message; return what it adds to the text."""
        response = pb.TranscribeResponse.FromString(raw)
        self.language = self.language or response.language
        self.duration_s = self.duration_s or response.duration
        before = self.text
        self.segments += response.segments
        if response.HasField("usage"):
            self.usage = response.usage
        return self.text[len(before) :]

    @property
    def text(self) -> str:
        """Return all of it, without blanks before it."""
        return "".join(segment.text for segment in self.segments).lstrip()


def whole(heard: Heard, form: str, task: str) -> bytes:
    """Return the body of an answer in this format."""
    if form == TEXT:
        return f"{heard.text.rstrip()}\n".encode()
    if form == SRT:
        return "\n".join(_srt(heard)).encode()
    if form == VTT:
        return "\n".join(["WEBVTT\n", *_vtt(heard)]).encode()
    told: dict[str, Any] = {"text": heard.text.rstrip(), "usage": _seconds(heard)}
    if form == VERBOSE:
        segments = [_segment(segment) for segment in heard.segments]
        told |= {"task": task, "language": heard.language, "duration": heard.duration_s, "segments": segments}
    return json.dumps(told, ensure_ascii=False).encode()


def delta(text: str) -> bytes:
    """Return the event of more text."""
    return _event({"type": "transcript.text.delta", "delta": text})


def done(heard: Heard) -> bytes:
    """Return the event of the end."""
    usage = heard.usage or pb.Usage()
    tokens = {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    return _event({"type": "transcript.text.done", "text": heard.text, "usage": tokens})


def failed(body: dict[str, Any]) -> bytes:
    """Return the event with which a stream breaks off."""
    return _event(body)


def _event(told: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(told, ensure_ascii=False)}\n\n".encode()


def _seconds(heard: Heard) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(heard.duration_s)}


def _segment(segment: pb.TranscribeSegment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "seek": round(segment.start * 100),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.token_ids),
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


def _srt(heard: Heard) -> Iterator[str]:
    for number, segment in enumerate(heard.segments, start=1):
        yield f"{number}\n{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}\n{_one_line(segment.text)}\n"


def _vtt(heard: Heard) -> Iterator[str]:
    for segment in heard.segments:
        yield f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}\n{_one_line(segment.text)}\n"


def _one_line(text: str) -> str:
    """Return text that ends no cue and begins no time."""
    return " ".join(text.split()).replace("-->", "->")


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    whole_seconds, rest = divmod(milliseconds, 1000)
    minutes, second = divmod(whole_seconds, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{point}{rest:03}"
