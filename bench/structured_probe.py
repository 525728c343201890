"""Our engine in a process of its own, asked with all that binds or foresees an answer.

    python -m bench.structured_probe MODEL_DIR THREADS [SPECULATION_METHOD [SPECULATION_MODEL]]

Answers jobs of `helpers`' kind; a job may be cut off after some passes, as if the worker were killed.
"""

from __future__ import annotations

import sys
import time

import msgspec

from bench.helpers import answer_questions
from bench.ours import Engine, settings_of
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import AbortRequests, AddRequest
from dormouse_worker.engine.testing import make_sampling


class Asked(msgspec.Struct, frozen=True):
    """One answer; `said` was said by a worker that was killed."""

    prompt: list[int]
    max_tokens: int
    grammar: Grammar | None = None
    said: list[int] = []
    seed: int = 0
    temperature: float = 1.0
    prediction: list[int] = []
    stop_token_ids: tuple[int, ...] = ()


class Ask(msgspec.Struct, frozen=True):
    """Answers wanted at once; None passes = to their ends."""

    asked: list[Asked]
    num_passes: int | None = None


class Heard(msgspec.Struct):
    """Implements what the desk asks of a trace."""

    tokens: list[int] = []
    finish_reason: str = ""

    def add(self, tokens: list[int], now_s: float, cached_tokens: int = 0) -> None:
        """Take one message."""
        del now_s, cached_tokens
        self.tokens += tokens


class Said(msgspec.Struct, frozen=True):
    """What came, by request, and what it took."""

    tokens: list[list[int]]
    finish_reasons: list[str]
    seconds: float
    cpu_seconds: float
    num_passes: int = 0  # turns of the loop

    @property
    def tokens_per_s(self) -> float:
        """Return output tokens per second of wall time."""
        return sum(map(len, self.tokens)) / self.seconds


class Probe(Engine):
    """The engine's loop, turned from here."""

    def say(self, ask: Ask) -> Said:
        """Return what is said. Raises RuntimeError if a request failed."""
        self._num_jobs += 1
        desk, loop = self._desk, self._loop
        names = [f"{self._num_jobs}-{place}" for place in range(len(ask.asked))]
        traces = {name: Heard() for name in names}
        desk.traces, desk.num_open = traces, len(names)
        for name, asked in zip(names, ask.asked, strict=True):
            fields = ("max_tokens", "temperature", "seed", "grammar", "stop_token_ids")
            sampling = make_sampling(**{field: getattr(asked, field) for field in fields})
            desk.post(AddRequest(name, asked.prompt, sampling, asked.said, prediction_token_ids=asked.prediction))
        num_passes = 0
        began_s, cpu_s = time.monotonic(), time.process_time()
        while desk.num_open and num_passes != ask.num_passes:
            loop.turn()
            num_passes += 1
        seconds, cpu_seconds = time.monotonic() - began_s, time.process_time() - cpu_s
        heard = [traces[name] for name in names]
        tokens, reasons = [list(h.tokens) for h in heard], [h.finish_reason for h in heard]
        said = Said(tokens, reasons, seconds, cpu_seconds, num_passes)
        if desk.num_open:
            desk.post(AbortRequests(names))
            loop.turn()
        return said


def main() -> None:
    """Answer until standard input ends."""
    model_dir, threads, *method = sys.argv[1:]
    settings = settings_of(model_dir, int(threads))
    if method:
        named = dict(zip(("speculation_method", "speculation_model"), method, strict=False))
        settings = msgspec.structs.replace(settings, **named)
    answer_questions(Ask, Probe(settings).say)


if __name__ == "__main__":
    main()
