"""How far an answer has come at the client, read from its messages, and how the rest of it is asked for and joined on.

Pure. The rest comes choice by choice, each as an answer of its own (`GenerateRequest.resume`); to the client they are
still one: one first message, one usage, nothing twice.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from dormouse_api.v1 import inference_pb2 as pb

_FINISH = b"\x28"  # the key of finish_reason
_ABORT = _FINISH + b"\x03"  # key and value, as every message spells FINISH_REASON_ABORT


class Gap(Exception):
    """Messages do not follow each other: tokens are missing, or come twice."""


@dataclass(slots=True)
class Choice:
    """What the client has of one choice."""

    index: int
    token_ids: array[int] = field(default_factory=lambda: array("I"))
    num_utf8_bytes: int = 0
    num_prompt_logprobs: int = 0
    is_finished: bool = False

    def take(self, response: pb.GenerateResponse) -> None:
        """Add a message. Raises Gap."""
        self.token_ids.extend(response.token_ids)
        if response.token_ids and response.completion_tokens != len(self.token_ids):
            told, got = response.completion_tokens, len(self.token_ids)
            raise Gap(f"choice {self.index} has {got} tokens where its worker says {told}")
        self.num_utf8_bytes += len(response.text.encode())
        self.num_prompt_logprobs += len(response.prompt_logprobs)
        self.is_finished = self.is_finished or bool(response.finish_reason)


class Progress:
    """What the client has of all choices."""

    def __init__(self, num_choices: int) -> None:
        """Begin with nothing."""
        self.choices = [Choice(index) for index in range(num_choices)]
        self.adapter_digest = ""  # of what answers; the first message tells it
        self.prefill: pb.GenerateResponse | None = None  # the last words of the worker that only computed the prompt
        self.has_moved = True  # from a worker that was to end it

    def __repr__(self) -> str:
        """Show how many tokens of each choice are there, and which have ended."""
        shown = (f"{len(choice.token_ids)}{'.' if choice.is_finished else '…'}" for choice in self.choices)
        return f"Progress({', '.join(shown)})"

    @property
    def unfinished(self) -> list[Choice]:
        """Return the choices that have not ended."""
        return [choice for choice in self.choices if not choice.is_finished]

    def take(self, response: pb.GenerateResponse) -> None:
        """Add a message. Raises Gap."""
        if response.choice_index >= len(self.choices):
            raise Gap(f"choice {response.choice_index} of {len(self.choices)}")
        self.adapter_digest = self.adapter_digest or response.adapter_digest
        self.choices[response.choice_index].take(response)


def read(body: bytes, messages: Iterable[bytes]) -> Progress:
    """Return how far the answer to this request is after these messages. Raises Gap."""
    progress = Progress(pb.GenerateRequest.FromString(body).sampling_params.n or 1)
    for raw in messages:
        try:
            progress.take(pb.GenerateResponse.FromString(raw))
        except DecodeError as error:
            raise Gap("a message cannot be read") from error
    return progress


def resumed(body: bytes, choice: Choice, adapter_digest: str = "", source: pb.KvSource | None = None) -> bytes:
    """Return the request for the rest of one choice, which the adapter with this digest began.

    `source` = the worker that may have blocks of it.
    """
    request = pb.GenerateRequest.FromString(body)
    request.sampling_params.ClearField("n")
    resume = pb.Resume(
        choice_index=choice.index,
        output_token_ids=choice.token_ids,
        emitted_utf8_bytes=choice.num_utf8_bytes,
        adapter_digest=adapter_digest,
        kv_source=source,
    )
    request.resume.CopyFrom(resume)
    return bytes(request.SerializeToString())


class Splice:
    """Joins the rest of one choice, as one worker streams it, onto what the client has."""

    def __init__(self, progress: Progress, choice: Choice) -> None:
        """Begin at the worker's first message.

        It tells the prompt's log-probabilities again, from the first, unless a token of the choice was there already.
        """
        self._progress = progress
        self._choice = choice
        self._num_repeated = 0 if choice.token_ids else choice.num_prompt_logprobs

    def join(self, raw: bytes) -> bytes:
        """Return the worker's message as the client is to get it; from now on he has it. Raises Gap."""
        response = pb.GenerateResponse.FromString(raw)
        if response.choice_index != self._choice.index:
            raise Gap(f"choice {response.choice_index} came where {self._choice.index} was asked for")
        response.ClearField("seed")
        response.ClearField("request_id")
        response.ClearField("adapter_digest")
        num_repeated = min(self._num_repeated, len(response.prompt_logprobs))
        del response.prompt_logprobs[:num_repeated]
        self._num_repeated -= num_repeated
        self._choice.take(response)
        response.migrated = self._choice.is_finished and self._progress.has_moved
        self._join_usage(response)
        if self._progress.prefill and self._choice.is_finished:
            _tell_of_prompt(response, self._progress.prefill)
        return bytes(response.SerializeToString())

    def _join_usage(self, response: pb.GenerateResponse) -> None:
        """The worker takes its one choice for the whole: only the last of all may tell, and tells of all."""
        if self._progress.unfinished:
            response.ClearField("usage")
        elif response.HasField("usage"):
            response.usage.completion_tokens = sum(len(choice.token_ids) for choice in self._progress.choices)


def _tell_of_prompt(response: pb.GenerateResponse, prefill: pb.GenerateResponse) -> None:
    """Say of the prompt what the worker said that computed it."""
    response.timings.queue_seconds = prefill.timings.queue_seconds
    response.timings.prefill_seconds = prefill.timings.prefill_seconds
    if response.HasField("usage"):
        response.usage.cached_tokens = prefill.usage.cached_tokens


def is_abort(raw: bytes) -> bool:
    """Return whether the message ends a choice because its worker had to stop; parses only what may be one."""
    if _ABORT not in raw:
        return False
    return pb.GenerateResponse.FromString(raw).finish_reason == pb.FINISH_REASON_ABORT


def may_be_last(raw: bytes) -> bool:
    """Return whether the message may end a choice; a guess without parsing, which misses none."""
    return _FINISH in raw


def is_end(raw: bytes) -> bool:
    """Return whether nothing follows this message: usage stands in the very last one."""
    return pb.GenerateResponse.FromString(raw).HasField("usage")
