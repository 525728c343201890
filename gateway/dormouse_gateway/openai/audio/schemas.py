"""What a form may say, once its numbers are numbers; and what answers look like. Data."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_api.limits import MAX_AUDIO_PROMPT_CHARS
from dormouse_gateway.openai.schema_kit import BOOLEAN, Json, array, fields, integer, number, request, text
from dormouse_gateway.openai.schemas import MODEL, PRIORITY

JSON, TEXT, VERBOSE, SRT, VTT = FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
_MOST_SEED = (1 << 63) - 1
_OPTIONAL: Mapping[str, Json] = {
    "prompt": text(0, MAX_AUDIO_PROMPT_CHARS) | {"description": "Words as they would stand before: spelling, names."},
    "response_format": {"enum": list(FORMATS), "description": "Default: json."},
    "temperature": number(0, 2) | {"description": "0, the default: 0, then up to 1 where what is heard is not good."},
    "seed": integer(0, _MOST_SEED) | {"description": "Of temperatures above 0. Default: drawn."},
    "priority": PRIORITY,
}
TRANSCRIPTION_REQUEST = request(
    {"model": MODEL},
    {
        "language": text(0, 32) | {"description": "Its code, such as en. Default: found in the first window."},
        **_OPTIONAL,
        "timestamp_granularities": array({"enum": ["segment"]}, 1) | {"description": "Of segments only."},
        "stream": BOOLEAN | {"description": "Events, each with the text of a window. With json and text only."},
        "chunking_strategy": {"enum": ["auto"], "description": "Without effect: sound is always cut where it pauses."},
    },
)
TRANSLATION_REQUEST = request({"model": MODEL}, _OPTIONAL)
REFUSED: Mapping[str, str] = {
    "include": "log-probabilities of tokens are not told; verbose_json tells those of segments",
    "known_speaker_names": "speakers are not told apart",
    "known_speaker_references": "speakers are not told apart",
}

_NUMBER: Json = {"type": "number"}
_SEGMENT = {
    "id": _NUMBER,
    "seek": _NUMBER,
    "start": _NUMBER,
    "end": _NUMBER,
    "text": text(),
    "tokens": {"type": "array", "items": _NUMBER},
    "temperature": _NUMBER,
    "avg_logprob": _NUMBER,
    "compression_ratio": _NUMBER,
    "no_speech_prob": _NUMBER,
}
_USAGE = fields({"type": {"const": "duration"}, "seconds": _NUMBER}, "type", "seconds")
_VERBOSE = {
    "task": text(),
    "language": text(),
    "duration": _NUMBER,
    "segments": {"type": "array", "items": fields(_SEGMENT, *_SEGMENT)},
}
AUDIO_ANSWER = fields({"text": text(), "usage": _USAGE, **_VERBOSE}, "text", "usage")
