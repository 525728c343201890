"""What a Transcribe call may say, each refusal naming field, value and limit. Pure; nothing is decoded before."""

from __future__ import annotations

import math

from dormouse_api.limits import (
    MAX_AUDIO_BYTES,
    MAX_AUDIO_PROMPT_CHARS,
    MAX_MESSAGE_BYTES,
    MAX_PRIORITY,
    MAX_TEMPERATURES,
)
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.files.speech_files import SpeechSpec
from dormouse_worker.front.refusing import check_request_id, refuse

ENGLISH = "en"
MAX_TEMPERATURE = 2.0
_THRESHOLDS = ("logprob_threshold", "compression_ratio_threshold", "no_speech_threshold")


def check_transcribe(request: pb.TranscribeRequest, spec: SpeechSpec, *, from_gateway: bool) -> None:
    """Check everything. Raises CallError INVALID_ARGUMENT."""
    if (size := request.ByteSize() - len(request.audio)) > MAX_MESSAGE_BYTES:
        refuse("message", f"{size} bytes beside its sound", f"at most {MAX_MESSAGE_BYTES} bytes")
    check_request_id(request.request_id)
    if not request.audio:
        refuse("audio", "empty", "a file of the kind wav, flac, ogg, mp3 or webm")
    if len(request.audio) > MAX_AUDIO_BYTES:
        refuse("audio", f"{len(request.audio)} bytes", f"at most {MAX_AUDIO_BYTES}")
    _check_language(request, spec)
    if len(request.prompt) > MAX_AUDIO_PROMPT_CHARS:
        refuse("prompt", f"{len(request.prompt)} characters", f"at most {MAX_AUDIO_PROMPT_CHARS}")
    if request.prompt and spec.previous is None:
        refuse("prompt", "set", "none: generation_config.json names no prev_sot_token_id")
    _check_numbers(request)
    if request.HasField("resume"):
        _check_resume(request.resume, spec, from_gateway=from_gateway)


def _check_language(request: pb.TranscribeRequest, spec: SpeechSpec) -> None:
    known = sorted(spec.languages) or [ENGLISH]
    if request.language and request.language not in known:
        refuse("language", ascii(request.language[:32]), ", ".join(known))
    if request.translate and not spec.languages:
        refuse("translate", "true", "false: this model knows English only")


def _check_numbers(request: pb.TranscribeRequest) -> None:
    if len(request.temperatures) > MAX_TEMPERATURES:
        refuse("temperatures", f"{len(request.temperatures)} numbers", f"at most {MAX_TEMPERATURES}")
    for place, temperature in enumerate(request.temperatures):
        if not 0 <= temperature <= MAX_TEMPERATURE:
            refuse(f"temperatures[{place}]", f"{temperature:g}", f"0 to {MAX_TEMPERATURE:g}")
    for name in _THRESHOLDS:
        if math.isnan(getattr(request, name)):
            refuse(name, "nan", "a number")
    if abs(request.priority) > MAX_PRIORITY:
        refuse("priority", str(request.priority), f"from -{MAX_PRIORITY} to {MAX_PRIORITY}")


def _check_resume(resume: pb.TranscribeResume, spec: SpeechSpec, *, from_gateway: bool) -> None:
    if not from_gateway:
        refuse("resume", "set", "only by the gateway")
    if resume.language not in (spec.languages or {ENGLISH: 0}):
        refuse("resume.language", ascii(resume.language[:32]), "a language of the model")
