"""Tasks beside text, in one process: questions about one text, vectors of many texts, the beginning of a long one.

Decisions: 16 questions of 30 tokens about a state of 2,000, beside one prompt of as many tokens as are computed once;
and 400 questions, as many as a call may have. The state is new each time.
Vectors: 128 texts of 16 to 256 tokens, of encoders with the shapes of MiniLM and BERT-base and random weights, beside
transformers in padded batches of 32 texts sorted by length, which is what sentence-transformers computes, and beside
OpenVINO in the same batches if `make bench-processor-peers` was run. All in float32, ours also of files in bfloat16; in
turns.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from rich.console import Console
from tokenizers import Tokenizer

from bench.helpers import Helper, environment
from bench.limits import use_threads
from bench.models import SHAPES, ensure_model
from bench.options import Options, main
from bench.processor_env import PEERS
from bench.results import AtMost, RatioAtLeast, RatioAtMost, Row
from bench.vector_ask import Embed, Embedded
from dormouse_worker.common.commands import Command, InitializeCache, Shutdown
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import (
    AddRequest,
    CommandRequest,
    CommandResult,
    EngineMessage,
    FrontMessage,
    Sampling,
    StepOutputs,
)
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddDecision, AddPooling
from dormouse_worker.engine.controller import Controller
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.front.text.truncation import encode_first

MODEL = "small"
STATE_TOKENS, QUESTION_TOKENS = 2000, 30
FEW, MANY = 16, 400  # questions
LABELS = [11, 12, 13]
NUM_TEXTS, SHORTEST, LONGEST = 128, 16, 256
PADDED_TEXTS = 32  # of one batch, as sentence-transformers has it
ENCODERS = {"MiniLM": (384, 6, 12, 1536), "BERT-base": (768, 12, 12, 3072)}
VOCAB_SIZE = 30522
VECTOR_GOALS = {"padded batches in float32": 2, "OpenVINO in float32": 1.1}
Dtype = Literal["float32", "bfloat16"]
LONG_TEXT_TOKENS, KEPT_TOKENS = 200_000, 512


@dataclass
class Side:
    """One engine, driven as its process drives it."""

    settings: EngineSettings
    sent: list[EngineMessage] = field(default_factory=list)  # since the last question

    def __post_init__(self) -> None:
        executor = SingleProcessExecutor(self.settings, {}, Host())
        self._controller = Controller(self.settings, executor, send=self.sent.append, clock=time.monotonic)
        self._controller.start()
        report = executor.get_memory_report()
        assert report is not None, self.sent[-1]
        self.run_command(InitializeCache(report.num_gpu_blocks))

    def run_command(self, command: Command) -> None:
        """Carry a command out."""
        self._controller.handle(CommandRequest(0, command))
        result = self.sent[-1]
        assert isinstance(result, CommandResult), result
        if result.error_reason:
            raise RuntimeError(result.error_message)

    def seconds(self, *messages: FrontMessage) -> float:
        """Return how long the engine takes for messages that come at once."""
        self.sent.clear()
        begun_s = time.perf_counter()
        for message in messages:
            self._controller.handle(message)
        while self._controller.has_work:
            self._controller.step()
        seconds = time.perf_counter() - begun_s
        failed = [sent.failed for sent in self.sent if isinstance(sent, StepOutputs) and sent.failed]
        assert not failed, failed
        return seconds


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    use_threads(options)
    rows = [*_decisions(options, console), _front()]
    with tempfile.TemporaryDirectory() as folder:
        for name in ENCODERS:
            rows += _vectors(name, Path(folder, name), options, console)
    return rows


def _decisions(options: Options, console: Console) -> Iterator[Row]:
    settings = EngineSettings(
        model=str(ensure_model(MODEL, "bf16")), kv_cache_memory_bytes=1 << 30, threads=options.threads
    )
    side, names, rng = Side(settings), count(), random.Random(5)
    vocab_size = SHAPES[MODEL].vocab_size

    def tokens(length: int) -> list[int]:
        return [rng.randrange(100, vocab_size) for _ in range(length)]

    def ask(num_questions: int) -> float:
        keys = [str(next(names)) for _ in range(num_questions)]
        branches = [tokens(QUESTION_TOKENS) for _ in keys]
        return side.seconds(AddDecision(keys, tokens(STATE_TOKENS), branches, [LABELS] * num_questions))

    def prefill(length: int) -> float:
        return side.seconds(AddRequest(str(next(names)), tokens(length), Sampling(0, 1, 0, 0, 0, 1)))

    laps = [(ask(FEW), prefill(STATE_TOKENS + FEW * QUESTION_TOKENS)) for _ in range(options.reps + 1)][1:]
    console.print(f"  {laps}", highlight=False)
    ours, peer = sorted(laps, key=lambda lap: lap[0] / lap[1])[len(laps) // 2]
    what = f"{FEW} questions over a state of {STATE_TOKENS} tokens beside prefilling the distinct tokens, {MODEL} bf16"
    yield Row(what, ours, "s", peer, RatioAtMost(1.15))
    yield Row(f"{MANY} questions over a state of {STATE_TOKENS} tokens, {MODEL} bf16", ask(MANY), "s")
    side.run_command(Shutdown())


def _front() -> Row:
    tokenizer = Tokenizer.from_file(str(ensure_model(MODEL, "bf16") / "tokenizer.json"))
    word = " return"
    text = word * (LONG_TEXT_TOKENS // len(tokenizer.encode(word).ids))

    def once() -> float:
        begun_s = time.perf_counter()
        encode_first(tokenizer, text, KEPT_TOKENS, add_special_tokens=True)
        return 1000 * (time.perf_counter() - begun_s)

    what = f"a text of {LONG_TEXT_TOKENS} tokens truncated to {KEPT_TOKENS}: tokenizing"
    return Row(what, median(once() for _ in range(9)), "ms", goal=AtMost(30))


def _vectors(name: str, directory: Path, options: Options, console: Console) -> Iterator[Row]:
    module = write_encoder(directory, *ENCODERS[name])
    directories: dict[Dtype, Path] = {"float32": directory, "bfloat16": directory / "halved"}
    deepcopy(module).bfloat16().save_pretrained(directories["bfloat16"])
    rng = random.Random(7)
    lengths = [rng.randint(SHORTEST, LONGEST) for _ in range(options.count or NUM_TEXTS)]
    texts = [[rng.randrange(1000, VOCAB_SIZE) for _ in range(length)] for length in lengths]
    with ExitStack() as opened:
        peers: dict[str, Callable[[], float]] = {"padded batches in float32": lambda: padded(module, texts)}
        if PEERS.is_made:
            peers["OpenVINO in float32"] = _openvino(directory, ENCODERS[name][2], texts, options, opened)
        ours = {dtype: _ours(path, dtype, texts, options, opened) for dtype, path in directories.items()}
        laps = [{way: once() for way, once in (peers | ours).items()} for _ in range(options.reps + 1)]
    best = {way: min(lap[way] for lap in laps) for way in laps[0]}
    console.print(f"  {name}: {best}", highlight=False)
    for dtype in ours:
        for peer in peers:
            what = f"vectors, {name}-shaped, {SHORTEST} to {LONGEST} tokens, {dtype} beside {peer}"
            goal = RatioAtLeast(VECTOR_GOALS[peer])
            yield Row(what, len(texts) / best[dtype], "texts/s", len(texts) / best[peer], goal)


def _ours(
    directory: Path, dtype: Dtype, texts: list[list[int]], options: Options, opened: ExitStack
) -> Callable[[], float]:
    """Return what has our engine embed the texts, and the seconds that it takes."""
    side, names = (
        Side(EngineSettings(model=str(directory), dtype=dtype, task="embed", threads=options.threads)),
        count(),
    )
    opened.callback(side.run_command, Shutdown())
    return lambda: side.seconds(AddPooling(str(next(names)), texts))


def _openvino(
    directory: Path, heads: int, texts: list[list[int]], options: Options, opened: ExitStack
) -> Callable[[], float]:
    """Return the same for OpenVINO, in a process that rests meanwhile."""
    arguments = (str(directory), str(heads), str(options.threads or len(os.sched_getaffinity(0))))
    helper = Helper("bench.vector_peer", *arguments, python=PEERS.python, env=environment(), rests=True)
    opened.enter_context(helper)
    return lambda: helper.ask(Embed(texts), Embedded).seconds


def write_encoder(directory: Path, hidden: int, layers: int, heads: int, inner: int) -> Any:
    """Write a BERT of this shape with random weights; return it."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
    )
    module = BertModel(config, add_pooling_layer=False).eval()
    module.save_pretrained(directory)
    return module


@torch.inference_mode()
def padded(module: Any, texts: Sequence[Sequence[int]]) -> float:
    """Return the seconds for mean vectors of padded batches."""
    begun_s = time.perf_counter()
    for batch in batches(texts):
        longest = len(batch[0])
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in batch])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in batch])
        hidden = module(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        torch.nn.functional.normalize(mean, dim=-1).numpy()
    return time.perf_counter() - begun_s


def batches(texts: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    """Yield the texts, longest first, so many at a time."""
    ordered = sorted(texts, key=len, reverse=True)
    for start in range(0, len(ordered), PADDED_TEXTS):
        yield ordered[start : start + PADDED_TEXTS]


if __name__ == "__main__":
    main("tasks", __doc__, measure)
