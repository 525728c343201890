"""One worker or a group on this machine, without fronts: `python -m bench.groups_probe SETTINGS`, see `helpers`.

The settings are JSON and name a `max_model_len`. The engine runs in this process; a group's ranks are processes of
their own, as in pods, and share the same cores.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from bench.helpers import answer_questions
from bench.worker import free_port_pair
from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.group import LOOPBACK, GroupPlace
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.testing import make_add, make_report
from dormouse_worker.executor.ranks.multi_process import MultiProcessExecutor
from dormouse_worker.executor.ranks.spawn import RANK_ARGV
from dormouse_worker.executor.single_process import SingleProcessExecutor

PROMPT_TOKENS = 16
PATIENCE_S = 600.0
PLENTY = 64  # blocks: room for all prompts of `Say`


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Decode so many sequences at once; count so many tokens of each."""

    num_sequences: int
    num_tokens: int


class Speed(msgspec.Struct, frozen=True):
    """Output tokens per second while every sequence decodes."""

    tokens_per_s: float


class Say(msgspec.Struct, frozen=True, tag=True):
    """Say the likeliest tokens after each prompt, in all circumstances."""

    prompts: list[list[int]]
    num_tokens: int


class Said(msgspec.Struct, frozen=True):
    """The tokens after each prompt, by circumstance."""

    tokens: dict[str, list[list[int]]]


@dataclass(frozen=True, slots=True)
class Circumstance:
    """What an engine has to get along with."""

    num_blocks: int = PLENTY
    num_host_blocks: int = 0
    batch_tokens: int = 256
    keeps_prefixes: bool = False
    sleep_level: int = 0  # before the prompts; 0 = none

    @property
    def preempts(self) -> bool:
        """Return whether there are too few blocks for all at once."""
        return self.num_blocks < PLENTY


@dataclass(slots=True)
class Run:
    """What all prompts, asked at once, came to."""

    tokens: list[list[int]]
    prefix_hits: int = 0
    preemptions: int = 0


CIRCUMSTANCES = {
    "in one batch": Circumstance(),
    "in chunks": Circumstance(batch_tokens=7),
    "from the prefix cache": Circumstance(batch_tokens=9, keeps_prefixes=True),
    "preempted": Circumstance(num_blocks=12, batch_tokens=8),
    "preempted and swapped": Circumstance(num_blocks=12, batch_tokens=8, num_host_blocks=12),
    "after a sleep of level 1": Circumstance(sleep_level=1),
    "after a sleep of level 2": Circumstance(sleep_level=2),
}


class Probe:
    """Owns the executor; an engine of its own for each question."""

    def __init__(self, settings: EngineSettings, executor: Executor) -> None:
        self._settings = settings
        self._executor = executor

    def __repr__(self) -> str:
        return f"Probe({self._executor!r})"

    def answer(self, question: Decode | Say) -> Speed | Said:
        """Return what is asked for. Raises RuntimeError if a step fails."""
        if isinstance(question, Decode):
            return self._decode(question)
        return Said({name: self._say(question, where) for name, where in CIRCUMSTANCES.items()})

    def _decode(self, job: Decode) -> Speed:
        """Measure over the tokens that come once every sequence has said its second."""
        longest = self._settings.max_model_len
        num_blocks = job.num_sequences * longest // self._settings.block_size
        engine = self._engine(Circumstance(num_blocks=num_blocks), longest, self._settings)
        prompts = [[(number * 31 + n * 7) % 1000 for n in range(PROMPT_TOKENS)] for number in range(job.num_sequences)]
        _add(engine, prompts, max_tokens=longest - PROMPT_TOKENS)
        _count_tokens(engine, 3 * job.num_sequences)
        started_s = time.perf_counter()
        num_tokens = _count_tokens(engine, job.num_tokens * job.num_sequences)
        seconds = time.perf_counter() - started_s
        engine.abort_all()
        for _ in engine.settle():
            pass
        return Speed(num_tokens / seconds)

    def _say(self, question: Say, where: Circumstance) -> list[list[int]]:
        settings = msgspec.structs.replace(
            self._settings, max_num_batched_tokens=where.batch_tokens, enable_prefix_caching=where.keeps_prefixes
        )
        longest = min(settings.max_model_len, where.num_blocks * settings.block_size)
        engine = self._engine(where, longest, settings)
        if where.sleep_level:
            self._executor.sleep(where.sleep_level, TAGS)
            self._executor.wake_up(TAGS)
        if where.keeps_prefixes:
            _run(engine, question)
        said = _run(engine, question)
        if (said.preemptions > 0, said.prefix_hits > 0) != (where.preempts, where.keeps_prefixes):
            raise RuntimeError(f"{where} did not come about: {said}")
        engine.check_integrity()
        return said.tokens

    def _engine(self, where: Circumstance, longest: int, settings: EngineSettings) -> Engine:
        agreed = (where.num_blocks, where.num_host_blocks)
        self._executor.initialize_cache(*agreed)
        report = make_report(num_gpu_blocks=where.num_blocks, block_size=settings.block_size, max_model_len=longest)
        return build_engine(settings, report, agreed, self._executor, clock=time.monotonic)


def _add(engine: Engine, prompts: Sequence[list[int]], max_tokens: int) -> None:
    for number, prompt in enumerate(prompts):
        refusal = engine.add(make_add(str(number), prompt, max_tokens=max_tokens))
        if refusal is not None:
            raise RuntimeError(f"prompt {number}: {refusal}")


def _run(engine: Engine, question: Say) -> Run:
    """Ask all prompts at once, and wait for their ends."""
    _add(engine, question.prompts, question.num_tokens)
    run = Run([[] for _ in question.prompts])
    while (outputs := engine.step()) is not None:
        if outputs.failed:
            raise RuntimeError(f"a step failed: {outputs.failed}")
        run.prefix_hits += outputs.prefix_hits
        run.preemptions += outputs.preemptions
        for output in outputs.outputs:
            run.tokens[int(output.request_id)] += output.token_ids
    return run


def _count_tokens(engine: Engine, at_least: int) -> int:
    """Run steps until so many tokens have come; return how many did."""
    count = 0
    while count < at_least:
        outputs = engine.step()
        if outputs is None or outputs.failed:
            raise RuntimeError(f"no tokens: {outputs}")
        count += sum(len(output.token_ids) for output in outputs.outputs)
    return count


@contextlib.contextmanager
def started(settings: EngineSettings) -> Iterator[Executor]:
    """An executor that has loaded its model, ended with the block."""
    place = GroupPlace(master_addr=LOOPBACK, master_port=free_port_pair(), rank_timeout_s=PATIENCE_S)
    is_alone = settings.tensor_parallel_size * settings.pipeline_parallel_size == 1
    executor: Executor = (
        SingleProcessExecutor(settings, os.environ, Host())
        if is_alone
        else MultiProcessExecutor(settings, os.environ, place)
    )
    with followers(settings, place):
        try:
            executor.init_device()
            executor.load_model()
            yield executor
        finally:
            executor.shutdown()


@contextlib.contextmanager
def followers(settings: EngineSettings, place: GroupPlace) -> Iterator[None]:
    """The ranks of the other pods, which end with their leader."""
    first, end = settings.tensor_parallel_size, settings.tensor_parallel_size * settings.pipeline_parallel_size
    processes = [_start_rank(rank, settings, place) for rank in range(first, end)]
    try:
        yield
    finally:
        for process in processes:
            process.wait(timeout=60)


def _start_rank(rank: int, settings: EngineSettings, place: GroupPlace) -> subprocess.Popen[bytes]:
    argv = [*RANK_ARGV, "--rank", str(rank), "--address", f"{LOOPBACK}:{place.message_port}"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None, "started with a pipe"
    process.stdin.write(msgspec.json.encode(settings))
    process.stdin.close()
    return process


def main() -> None:
    """Load, then answer until standard input ends."""
    settings = msgspec.json.decode(sys.argv[1], type=EngineSettings)
    with started(settings) as executor:
        answer_questions(Decode | Say, Probe(settings, executor).answer)


if __name__ == "__main__":
    main()
