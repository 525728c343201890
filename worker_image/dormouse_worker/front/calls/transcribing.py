"""One Transcribe call, from its message to its last segment: window after window. Knows no gRPC context.

What is heard of a window decides where the next one begins, so one call has one window with the engine at a time; those
of several calls share passes. Nothing is carried over but the language: a call can go on at any window, anywhere.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Literal

import grpc

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import RETRY_AFTER_S
from dormouse_worker.common.task_messages import AddWindow, WindowOutput, WindowParams
from dormouse_worker.files.speech_files import SpeechSpec
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.requests.caller import Caller, TimeLimit, in_time
from dormouse_worker.front.requests.pooled import PooledAnswer
from dormouse_worker.front.requests.streams import Times
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.speech.checks import ENGLISH, check_transcribe
from dormouse_worker.front.speech.desk import Sound, SoundRefused, SpeechDesk
from dormouse_worker.front.speech.segments import Segment, Span, cut
from dormouse_worker.front.worker import Worker

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LOGPROB_THRESHOLD, COMPRESSION_RATIO_THRESHOLD, NO_SPEECH_THRESHOLD = -1.0, 1.35, 0.6
Threshold = Literal["compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"]
_MAX_SEED = 1 << 64
_SEED_STRIDE = 64  # between two frames: more than there are temperatures
_OPEN = (State.READY, State.DRAINING)


async def transcribe(
    worker: Worker, model: Model, request: pb.TranscribeRequest, caller: Caller
) -> AsyncIterator[pb.TranscribeResponse]:
    """Check everything, decode the sound, have the engine hear it. Raises CallError."""
    desk = model.desk_for_sound
    assert desk is not None, "the model's task is to transcribe"
    check_transcribe(request, desk.spec, from_gateway=caller.is_gateway)
    worker.check_admission(caller)
    async with AsyncExitStack() as opened:
        with worker.requests.preparing(1, "audio", holds=caller.is_in_pod):
            sound = await _decoded(opened, desk, request, caller)
        worker.check_admission(caller, again=True)  # it may have changed while we decoded
        opened.enter_context(worker.requests.held())
        async for response in Transcription(worker, model, desk, request, caller).run(sound):
            yield response


async def _decoded(opened: AsyncExitStack, desk: SpeechDesk, request: pb.TranscribeRequest, caller: Caller) -> Sound:
    """Return the sound, whose features are there until the stack is closed; the request has none any more."""
    audio, request.audio = request.audio, b""
    try:
        return await opened.enter_async_context(desk.hear(audio, caller.name))
    except SoundRefused as error:
        refuse("audio", f"not usable: {error}", "a whole file within the limits")


@dataclass(slots=True)
class _Told:
    """What a call's messages said so far."""

    num_segments: int
    language: str
    is_first: bool = True
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    queue_s: float = 0.0
    hearing_s: float = 0.0


class Transcription:
    """One call over its windows. Owns how far it is."""

    def __init__(
        self, worker: Worker, model: Model, desk: SpeechDesk, request: pb.TranscribeRequest, caller: Caller
    ) -> None:
        self._worker = worker
        self._model = model
        self._desk = desk
        self._spec: SpeechSpec = desk.spec
        self._request = request
        self._caller = caller
        self._seed = request.seed if request.HasField("seed") else random.getrandbits(64)  # nosec B311
        known = ENGLISH if not self._spec.languages else request.language
        self._told = _Told(request.resume.num_segments, request.resume.language or known)
        self._until_s = worker.clock() + caller.time_limit.seconds if caller.time_limit else None

    async def run(self, sound: Sound) -> AsyncIterator[pb.TranscribeResponse]:
        """Yield a message for each window. Raises CallError."""
        words = await self._words()
        first = min(self._request.resume.first_frame, sound.num_content_frames)
        while True:
            span = Span(first, min(self._spec.window_frames, sound.num_content_frames - first))
            output = await self._hear(sound, span, words)
            self._note(output)
            made = cut([] if output.is_silent else output.token_ids, span, self._spec)
            first += max(1, made.num_frames) if made.segments else span.count
            is_last = first >= sound.num_content_frames
            yield await self._message(output, made.segments, sound, next_frame=first, is_last=is_last)
            if is_last:
                return

    async def _words(self) -> list[int]:
        """Return the tokens of what is to stand before each window."""
        if not self._request.prompt:
            return []
        encode = partial(self._model.codec.encode, " " + self._request.prompt.strip(), add_special_tokens=False)
        found = await self._model.work.run(encode, caller=self._caller.name, num_bytes=len(self._request.prompt))
        most = self._spec.max_target_positions // 2 - 1
        previous = self._spec.previous
        assert previous is not None, "checked"
        return [previous, *[token for token in found if token < self._spec.eos][-(most - 1) :]]

    async def _hear(self, sound: Sound, span: Span, words: Sequence[int]) -> WindowOutput:
        """Return what the engine hears of a window. Raises CallError."""
        worker = self._worker
        if worker.board.state not in _OPEN:
            raise CallError(grpc.StatusCode.UNAVAILABLE, worker.words, RETRY_AFTER_S[worker.board.state])
        answer: PooledAnswer[WindowOutput] = PooledAnswer(Times(worker.clock()))
        async with self._desk.window(sound, span) as name:
            key = worker.requests.open_window(answer, self._asked(name, span, words))
            try:
                return await in_time(answer.wait(), self._time_left())
            finally:
                worker.requests.abandon([key])

    def _asked(self, name: str, span: Span, words: Sequence[int]) -> Callable[[str], AddWindow]:
        """Return what makes the engine's message, once its id is known."""
        spec, request = self._spec, self._request
        prompt = [*words, spec.start]
        language_ids: list[int] = []
        if spec.languages:
            language_ids = [] if self._told.language else list(spec.languages.values())
            task = "translate" if request.translate else "transcribe"
            prompt += [spec.languages.get(self._told.language, spec.start), spec.tasks[task]]
        params = WindowParams(
            max_tokens=spec.max_target_positions - len(prompt),
            bytes_per_token=spec.bytes_per_token,
            temperatures=tuple(request.temperatures) or TEMPERATURES,
            compression_ratio_threshold=_or(request, "compression_ratio_threshold", COMPRESSION_RATIO_THRESHOLD),
            logprob_threshold=_or(request, "logprob_threshold", LOGPROB_THRESHOLD),
            no_speech_threshold=_or(request, "no_speech_threshold", NO_SPEECH_THRESHOLD),
            seed=(self._seed + span.first * _SEED_STRIDE) % _MAX_SEED,
        )
        self._told.num_prompt_tokens += len(prompt)
        self._worker.metrics.on_prompt(len(prompt))
        return partial(
            AddWindow,
            tensors=name,
            prompt_token_ids=prompt,
            params=params,
            start_place=len(words),
            language_ids=language_ids,
            priority=request.priority,
        )

    def _note(self, output: WindowOutput) -> None:
        told = self._told
        if output.language_id >= 0:
            told.language = next(code for code, token in self._spec.languages.items() if token == output.language_id)
        told.num_tokens += output.num_tokens
        told.queue_s = told.queue_s or output.queue_seconds
        told.hearing_s += output.prefill_seconds

    async def _message(
        self, output: WindowOutput, segments: Sequence[Segment], sound: Sound, *, next_frame: int, is_last: bool
    ) -> pb.TranscribeResponse:
        told, response = self._told, pb.TranscribeResponse(next_frame=min(next_frame, sound.num_content_frames))
        for segment in segments:
            response.segments.append(await self._segment(segment, output, sound))
        if told.is_first:
            response.language, response.duration, told.is_first = told.language, sound.seconds, False
            response.request_id = self._request.request_id or uuid.uuid4().hex
        if is_last:
            response.usage.prompt_tokens, response.usage.completion_tokens = told.num_prompt_tokens, told.num_tokens
            response.timings.queue_seconds, response.timings.prefill_seconds = told.queue_s, told.hearing_s
        return response

    async def _segment(self, segment: Segment, output: WindowOutput, sound: Sound) -> pb.TranscribeSegment:
        words = [token for token in segment.token_ids if token < self._spec.eos]
        decode = partial(self._model.codec.decode, words, skip_special_tokens=True)
        text = await self._model.work.run(decode, caller=self._caller.name, num_bytes=len(words))
        number = self._told.num_segments
        self._told.num_segments += 1
        return pb.TranscribeSegment(
            id=number,
            start=min(segment.start_s, sound.seconds),
            end=min(segment.end_s, sound.seconds),
            text=text,
            token_ids=segment.token_ids,
            temperature=output.temperature,
            avg_logprob=output.avg_logprob,
            compression_ratio=output.compression_ratio,
            no_speech_prob=output.no_speech_prob,
        )

    def _time_left(self) -> TimeLimit | None:
        limit = self._caller.time_limit
        if limit is None or self._until_s is None:
            return None
        return TimeLimit(max(0.0, self._until_s - self._worker.clock()), limit.why)


def _or(request: pb.TranscribeRequest, name: Threshold, default: float) -> float:
    return float(getattr(request, name)) if request.HasField(name) else default
