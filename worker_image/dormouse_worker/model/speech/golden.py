"""Golden tokens of sound: what a model says of a fixed window at its first start, and must say after every wake."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dormouse_worker.common.errors import GoldenTokensDiffer, LogitsNotFinite
from dormouse_worker.engine.speech.batch import SpeechBatch, SpeechRow, SpeechToken
from dormouse_worker.model.speech.cache import Places
from dormouse_worker.model.speech.runner import SpeechRunner

NUM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class GoldenSpeech:
    """Tokens, and how likely they were."""

    tokens: tuple[SpeechToken, ...]


def record_golden(runner: SpeechRunner) -> GoldenSpeech:
    """Hear the golden window, in a place of its own. Raises LogitsNotFinite."""
    return GoldenSpeech(_tokens(runner))


def verify_golden(runner: SpeechRunner, recorded: GoldenSpeech) -> None:
    """Hear it again. Raises GoldenTokensDiffer unless every bit is the recorded one."""
    for number, (before, now) in enumerate(zip(recorded.tokens, _tokens(runner), strict=True)):
        if before != now:
            raise GoldenTokensDiffer(
                f"golden token {number + 1} is {now.token_id} with log-probability {now.logprob}, where it was "
                f"{before.token_id} with {before.logprob} at the first start; the same pass on the same weights gives "
                "the same bits: the model's files changed or its memory is damaged: restart the worker"
            )


@torch.inference_mode()
def _tokens(runner: SpeechRunner) -> tuple[SpeechToken, ...]:
    model = runner.model
    spec, places = model.spec, Places.allocate(model.sizes, 1, model.network.device)
    model.network.encode(_window(spec.num_mels, spec.window_frames), places, 0)
    alone, known, tokens = SpeechRunner(model, places, runner.folder), [spec.start], list[SpeechToken]()
    while len(tokens) < NUM_TOKENS and len(known) < spec.max_target_positions:
        row = SpeechRow(0, known, len(tokens), 1, start_place=-1 if tokens else 0)
        output = alone.execute(SpeechBatch((row,)))
        if output.not_finite:
            raise LogitsNotFinite(
                "the logits of the model's golden window are not finite: its weights are damaged, or its numbers grow "
                "too large for its dtype: copy the model again, or choose a dtype with a wider range"
            )
        tokens += output.tokens
        known = [*known, output.tokens[0].token_id]
    return tuple(tokens)


def _window(num_mels: int, num_frames: int) -> torch.Tensor:
    """Return features as uneven as those of speech."""
    numbers = torch.arange(num_mels * num_frames, dtype=torch.float32)
    return torch.sin(numbers * math.pi / 7).view(num_mels, num_frames)
