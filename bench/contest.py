"""Our worker and transformers on the same requests, in one run and in turns: what disturbs one disturbs both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

from bench.helpers import Helper, Job
from bench.models import SHAPES, ensure_model
from bench.options import Options
from bench.replies import Reply, num_equal, tokens_per_s, tpot_ms, ttft_ms
from bench.results import Row
from bench.worker import ready_worker
from bench.workload import make_workload

FLOAT32_MODELS = ("tiny", "small")
Figure = Callable[[Sequence[Reply]], float]
MeasureModel = Callable[[str, Options, Console], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Rounds:
    """The measured repetitions of one workload; the same index is the same requests."""

    ours: tuple[list[Reply], ...]
    peer: tuple[list[Reply], ...]

    @property
    def num_requests(self) -> int:
        """Return how many requests each side answered."""
        return sum(len(replies) for replies in self.ours)

    @property
    def num_equal(self) -> int:
        """Return how many of them got the same tokens from both."""
        return sum(num_equal(ours, peer) for ours, peer in zip(self.ours, self.peer, strict=True))

    def medians(self, figure: Figure) -> tuple[float, float]:
        """Return a figure's median over the repetitions: ours, the peer's."""
        return median(map(figure, self.ours)), median(map(figure, self.peer))


class Contest:
    """Both sides, started with one model."""

    def __init__(self, name: str, ours: Helper, peer: Helper, port: int) -> None:
        self.name = name
        self.ours = ours  # the client of our worker
        self._peer = peer
        self._port = port

    def __repr__(self) -> str:
        return f"Contest({self.name})"

    def job(self, workload: str, options: Options, rep: int, stream_interval: int = 1) -> Job:
        """Return a repetition's requests; repetition 0 is the warm-up."""
        vocab_size = SHAPES[self.name].vocab_size
        drawn = make_workload(workload, vocab_size=vocab_size, rep=rep, count=options.count)
        return Job(drawn.requests, port=self._port, stream_interval=stream_interval)

    def run(self, workload: str, options: Options, console: Console, *, stream_interval: int = 1) -> Rounds:
        """Warm both up, then let them take turns. Our worker sends so many tokens in a message."""
        jobs = [self.job(workload, options, rep, stream_interval) for rep in range(options.reps + 1)]
        rounds = [self._round(job, console, rep) for rep, job in enumerate(jobs)]
        ours, peer = zip(*rounds[1:], strict=True)
        return Rounds(ours, peer)

    def _round(self, job: Job, console: Console, rep: int) -> tuple[list[Reply], list[Reply]]:
        ours, peer = self.ours.run(job), self._peer.run(job)
        title = f"{self.name} {'warm-up' if rep == 0 else rep}"
        console.print(f"  {title}: ours {describe(ours)}; transformers {describe(peer)}", highlight=False)
        return ours, peer


def rows_of_models(
    options: Options, console: Console, in_bfloat16: MeasureModel, in_float32: MeasureModel
) -> list[Row]:
    """Return the rows of every model; in float32, too, where transformers takes part and the model is not too large."""
    rows: list[Row] = []
    for name in options.models:
        rows += in_bfloat16(name, options, console)
        if "transformers" in options.peers and name in FLOAT32_MODELS:
            rows += in_float32(name, options, console)
    return rows


@contextmanager
def contest(name: str, options: Options) -> Iterator[Contest]:
    """Start both sides with a model; they end with the block."""
    model: Path = ensure_model(name)
    with ExitStack() as stack:
        peer = stack.enter_context(Helper("bench.peer", str(model), str(options.threads)))
        client = stack.enter_context(Helper("bench.client"))
        worker = stack.enter_context(ready_worker(model, flags=("--threads", str(options.threads))))
        yield Contest(name, client, peer, worker.port)


def describe(replies: Sequence[Reply]) -> str:
    """Return what came of a workload in words."""
    first = f"{tokens_per_s(replies):,.0f} tokens/s, first {ttft_ms(replies):.1f} ms"
    return f"{first}, then {tpot_ms(replies):.2f} ms" if any(len(reply.tokens) > 1 for reply in replies) else first
