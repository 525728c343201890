"""Several tokens a pass: drafts beside none, on a real chat model, and what proposing them takes.

    tasks      one greedy request alone, SmolLM2-135M-Instruct: copy, edit, extract, quote, chat
    load       64 sequences of random text on random weights: with and without
    proposing  microseconds to propose for one sequence of 32k tokens

Two engines, one with --speculation-method auto and one without, take turns on the same requests, and have to give the
same tokens; the median ratio counts. Processor time, and one thread unless --threads says more: what else
the machine does counts less so. No peer is measured, and of the drafters only those that there are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from tokenizers import Tokenizer

from bench.helpers import Helper
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtMost, Goal, RatioAtLeast, Row
from bench.speculation_cases import CASES, END_OF_TURN, Case, prompt_of
from bench.structured_probe import Ask, Asked, Said
from bench.workload import make_workload
from dormouse_worker.engine.drafts.sequence import SequenceDrafts
from tools.demo_model import demo_model_dir

PROBE = "bench.structured_probe"
SPEED_UNIT = "output tokens/s of processor time"
NUM_SEQS, LOAD_TOKENS = 64, 64
LONG_TOKENS, NUM_PROPOSALS, VOCABULARY = 32_768, 2_000, 500
PAIRS = 3  # for each of the repetitions asked for

Sides = tuple[Helper, Helper]  # with drafts, without


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows. The chat model must have been made (`make demo-model`)."""
    threads = str(options.threads or 1)
    num_pairs, chat, small = PAIRS * options.reps, demo_model_dir(), ensure_model("small", "bf16")
    rows = [_proposing()]
    with _sides(chat, threads) as sides:
        encode = _encoder(chat)
        for case in CASES:
            asks = [_ask(case, wish, encode) for wish in case.wishes]
            rows.append(_beside(case.name, sides, asks, RatioAtLeast(case.least), num_pairs, console))
    with _sides(small, threads) as sides:
        what = f"{NUM_SEQS} sequences, random text, random weights (small bf16)"
        rows.append(_beside(what, sides, [_load()], RatioAtLeast(0.98), num_pairs, console))
    return rows


@contextmanager
def _sides(model: Path, threads: str) -> Iterator[Sides]:
    """Start an engine with drafts and one without."""
    arguments = (PROBE, str(model), threads)
    with Helper(*arguments, "auto", rests=True) as drafting, Helper(*arguments, rests=True) as plain:
        yield drafting, plain


def _encoder(model: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def _ask(case: Case, wish: str, encode: Callable[[str], list[int]]) -> Ask:
    ends, prediction = tuple(encode(END_OF_TURN)), encode(case.prediction)
    prompt, longest = encode(prompt_of(wish)), case.max_tokens
    return Ask([Asked(prompt, longest, temperature=0.0, prediction=prediction, stop_token_ids=ends)])


def _load() -> Ask:
    prompts = [request.prompt for request in make_workload("W4", vocab_size=4096, count=NUM_SEQS).requests]
    return Ask([Asked(prompt, LOAD_TOKENS, seed=seed) for seed, prompt in enumerate(prompts)])


@dataclass(frozen=True, slots=True)
class Pace:
    """What one side did with all of a case's requests, one after the other."""

    tokens: list[list[list[int]]]
    cpu_seconds: float
    num_passes: int

    @property
    def num_tokens(self) -> int:
        """Return how many tokens came."""
        return sum(len(tokens) for answers in self.tokens for tokens in answers)

    @property
    def tokens_per_s(self) -> float:
        """Return output tokens per second of processor time."""
        return self.num_tokens / self.cpu_seconds


def _pace(side: Helper, asks: Sequence[Ask]) -> Pace:
    said = [side.ask(ask, Said) for ask in asks]
    return Pace([one.tokens for one in said], sum(one.cpu_seconds for one in said), sum(one.num_passes for one in said))


def _beside(what: str, sides: Sides, asks: Sequence[Ask], goal: Goal, num_pairs: int, console: Console) -> Row:
    """Return tokens per second with drafts beside those without: the pair with the middle ratio.

    Raises RuntimeError if a token is another one with drafts.
    """
    pairs = []
    for number in range(num_pairs + 1):  # the first warms up
        first, second = (_pace(sides[(number + turn) % 2], asks) for turn in (0, 1))
        if first.tokens != second.tokens:
            raise RuntimeError(f"{what}: other tokens with drafts: {first.tokens} and {second.tokens}")
        pairs.append((second, first) if number % 2 else (first, second))
    pairs = sorted(pairs[1:], key=lambda pair: pair[0].tokens_per_s / pair[1].tokens_per_s)
    drafting, plain = pairs[len(pairs) // 2]
    what = f"{what}: {plain.num_passes / drafting.num_passes:.2f} × the tokens in a pass"
    ratios = ", ".join(f"{drafting.tokens_per_s / plain.tokens_per_s:.2f}" for drafting, plain in pairs)
    console.print(f"  {what}; ratios {ratios}", highlight=False)
    return Row(what, drafting.tokens_per_s, SPEED_UNIT, plain.tokens_per_s, goal)


def _proposing() -> Row:
    """Return the median time to note a token and to propose, in a long text of few words."""
    draw = random.Random(7)
    drafts = SequenceDrafts([draw.randrange(VOCABULARY) for _ in range(LONG_TOKENS)], 2 * LONG_TOKENS)
    while drafts.propose(0.0, 8) == () or len(drafts.propose(0.0, 8)) < 8:  # takes the text in over several passes
        drafts.append([draw.randrange(VOCABULARY)])
    seconds = []
    for _ in range(NUM_PROPOSALS):
        token = draw.randrange(VOCABULARY)
        began_s = time.perf_counter()
        drafts.append([token])
        drafts.propose(0.0, 8)
        seconds.append(time.perf_counter() - began_s)
    what = f"to propose for a sequence of {LONG_TOKENS} tokens, median of {NUM_PROPOSALS}"
    return Row(what, 1e6 * median(seconds), "µs", goal=AtMost(10))


if __name__ == "__main__":
    main("speculation", __doc__, measure)
