"""What the front and an engine process say of other tasks than generating: vectors, decisions, windows of sound.

They travel beside the messages of `ipc`.
"""

from __future__ import annotations

import msgspec


class PoolingParams(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a text's hidden states; every limit is checked (the front does)."""

    dimensions: int = 0  # of the vector that are kept; 0 = all
    normalize: bool | None = None  # None = as the model's files say
    use_activation: bool = True  # of a head: False = its own numbers


class AddPooling(msgspec.Struct, frozen=True, tag=True):
    """A validated call for vectors: of each text one. It ends with one `PooledOutput` or as failed."""

    request_id: str  # unique for the life of the front, among `AddRequest`s too
    inputs: list[list[int]]  # token ids of texts, none empty
    params: PoolingParams = PoolingParams()
    priority: int = 0  # lower goes first; equal ones in order of arrival
    second_starts: list[int] = []  # of pairs: the place of each one's first token of the second kind, 0 = it has none


class PooledOutput(msgspec.Struct, frozen=True, gc=False):
    """What became of one call for vectors."""

    request_id: str
    vectors: list[bytes]  # one for each text, in order: float32, little-endian; empty if aborted
    finish_reason: str = "stop"  # stop | abort
    queue_seconds: float = 0.0  # accepted → first scheduled
    prefill_seconds: float = 0.0  # first scheduled → last vector


class AddDecision(msgspec.Struct, frozen=True, tag=True):
    """Validated sequences of one token that begin alike, each of which tells how likely named tokens come next.

    They are requests of their own, in line at once: what they have in common is computed in the same pass.
    """

    request_ids: list[str]  # as that of `AddRequest`
    prompt_token_ids: list[int]  # how all of them begin
    branches: list[list[int]]  # how each goes on
    logprob_token_ids: list[list[int]]  # of each, not empty
    priority: int = 0
    cache_salt: str = ""
    adapter: str = ""


class WindowParams(msgspec.Struct, frozen=True, gc=False):
    """How a window of sound becomes tokens; every limit is checked (the front does). Names as those of Whisper."""

    max_tokens: int  # of the output, its end included
    bytes_per_token: int  # where compression is measured
    timestamps: bool = True  # what is said stands between tokens of time
    temperatures: tuple[float, ...] = (0.0,)  # tried in this order, until an output is good enough
    compression_ratio_threshold: float | None = None  # above it an output repeats itself
    logprob_threshold: float | None = None  # below it, on average, it is not sure
    no_speech_threshold: float | None = None  # above it nobody speaks, if it is not sure either
    seed: int = 0  # of temperatures above 0


class AddWindow(msgspec.Struct, frozen=True, tag=True):
    """A validated window of sound. It ends with one `WindowOutput` or as failed."""

    request_id: str  # unique for the life of the front, among `AddRequest`s too
    tensors: str  # a file below the pod's folder for them: float32 [frames, mels] of features, as many as a window has
    prompt_token_ids: list[int]  # of the decoder
    params: WindowParams
    start_place: int = 0  # where in the prompt <|startoftranscript|> is
    language_ids: list[int] = []  # if any: the one that the model finds likeliest takes the place behind it
    priority: int = 0  # lower goes first; equal ones in order of arrival


class WindowOutput(msgspec.Struct, frozen=True, gc=False):
    """What became of one window of sound."""

    request_id: str
    token_ids: list[int]  # without the end; empty if aborted
    language_id: int = -1  # that was found; -1 = it was not asked for
    is_silent: bool = False  # nobody speaks, by the thresholds
    temperature: float = 0.0  # that gave them
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    finish_reason: str = "stop"  # stop | abort
    queue_seconds: float = 0.0  # accepted → first scheduled
    prefill_seconds: float = 0.0  # first scheduled → last token
    num_tokens: int = 0  # that were computed, those of attempts that were not good enough included
