"""Several tokens a pass: drafts beside none, on a real chat model, and what proposing them takes.

    tasks      one greedy request alone, SmolLM2-135M-Instruct: copy, edit, extract, quote, chat
    again      the same requests once more: earlier answers are known
    load       64 sequences of random text on random weights: with and without
    draft      a draft model beside a model of q05's layers, both trained on the same text: alone, and many at once
    proposing  microseconds to propose for one sequence of 32k tokens
    step       a step outside the kernels, 64 sequences with four drafts each
    grid       speed over acceptance and batch size, and a picture of it for docs/concepts/speculation.md

Two engines, one with drafts and one without, take turns on the same requests, and have to give the
same tokens; the median ratio counts. Processor time, and one thread unless --threads says more: what else
the machine does counts less so. `--parts` measures some of these. In `tasks` drafts are n-grams alone: requests come
again and again there, which earlier answers would make too easy. No peer is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType

import msgspec
from rich.console import Console
from tokenizers import Tokenizer

from bench.draft_pair import make_pair
from bench.helpers import Helper
from bench.models import ensure_model
from bench.options import Measure, Options, main
from bench.results import PICTURES, AtMost, Goal, RatioAtLeast, Row
from bench.speculation_cases import CASES, END_OF_TURN, Case, prompt_of
from bench.speculation_picture import draw
from bench.step_cost import measure_drafted_step_ms
from bench.structured_probe import Ask, Asked, Said
from bench.workload import make_workload
from dormouse_worker.engine.drafts.pace import EqualRows
from dormouse_worker.engine.drafts.sequence import SequenceDrafts
from tools.demo_model import demo_model_dir
from tools.train_model import QUESTIONS

PROBE = "bench.structured_probe"
SPEED_UNIT = "output tokens/s of processor time"
NUM_SEQS, LOAD_TOKENS = 64, 64
LONG_TOKENS, NUM_PROPOSALS, VOCABULARY = 32_768, 2_000, 500
STEP_DRAFTS = 4
GRID_SEQS, GRID_SHARES = (1, 4, 16, 48), (0.0, 0.5, 0.8, 0.95, 1.0)
DRAFTED_TOKENS = 64
_QUESTIONS = [*zip(QUESTIONS, ("read", "close", "parse", "open_file"), strict=False)]
PAIRS = 3  # for each of the repetitions asked for

Sides = tuple[Helper, Helper]  # with drafts, without


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows. The chat model must have been made (`make demo-model`)."""
    if unknown := set(options.parts) - set(PARTS):
        raise SystemExit(f"--parts has {', '.join(sorted(unknown))}; allowed are {', '.join(PARTS)}")
    return [row for part in options.parts or PARTS for row in PARTS[part](options, console)]


def _tasks(options: Options, console: Console) -> list[Row]:
    return _ask_each_case(options, console, "ngram", "")


def _again(options: Options, console: Console) -> list[Row]:
    return _ask_each_case(options, console, "suffix", ", asked again")


def _ask_each_case(options: Options, console: Console, method: str, suffix: str) -> list[Row]:
    chat, rows = demo_model_dir(), []
    with _sides(chat, options, method) as sides:
        encode = _encoder(chat)
        for case in CASES:
            asks = [_ask(case, wish, encode) for wish in case.wishes]
            goal = None if suffix else RatioAtLeast(case.least)
            rows.append(_beside(case.name + suffix, sides, asks, goal, PAIRS * options.reps, console))
    return rows


def _under_load(options: Options, console: Console) -> list[Row]:
    with _sides(ensure_model("small", "bf16"), options, "auto") as sides:
        what = f"{NUM_SEQS} sequences, random text, random weights (small bf16)"
        return [_beside(what, sides, [_load()], RatioAtLeast(0.98), PAIRS * options.reps, console)]


def _draft_model(options: Options, console: Console) -> list[Row]:
    """Return rows of answers alone, likeliest tokens and sampled ones, and of as many as a batch has."""
    model, small = make_pair()
    encode, rows = _encoder(model), []
    prompts = [encode(f"<|user|>{question.format(name)}</s><|assistant|>") for question, name in _QUESTIONS]
    with _sides(model, options, "draft", small) as sides:
        for name, temperature, goal in (("likeliest", 0.0, RatioAtLeast(1 / 0.65)), ("sampled", 0.8, None)):
            asks = [Ask([Asked(prompt, DRAFTED_TOKENS, temperature=temperature)]) for prompt in prompts]
            what = f"draft model, {name} tokens (q05's layers, bf16; goal: 0.65 of the time per token)"
            rows.append(_beside(what, sides, asks, goal, PAIRS * options.reps, console))
        for num_seqs in (8, NUM_SEQS):
            many = [Asked(prompts[i % len(prompts)], DRAFTED_TOKENS, seed=i) for i in range(num_seqs)]
            what = f"draft model, {num_seqs} sequences, sampled at 1.0 (q05's layers, bf16)"
            rows.append(_beside(what, sides, [Ask(many)], RatioAtLeast(0.98), options.reps, console))
    return rows


def _step(options: Options, console: Console) -> list[Row]:
    costs = [measure_drafted_step_ms(STEP_DRAFTS) for _ in range(options.reps)]
    console.print(f"  {costs[0]}", highlight=False)
    what = f"step outside the kernels, {NUM_SEQS} sequences, {STEP_DRAFTS} drafts each, all right (tiny bf16)"
    return [Row(what, median(cost.total_ms for cost in costs), "ms", goal=AtMost(0.8))]


def _grid(options: Options, console: Console) -> list[Row]:
    """Return how many times as fast it is, by batch size and share of right tokens; draw it."""
    points = {}
    with _sides(ensure_model("small", "bf16"), options, "ngram") as sides:
        for num_seqs in GRID_SEQS:
            asks = _load(num_seqs)
            answers = _pace(sides[1], [asks]).tokens[0]
            for share in GRID_SHARES:
                guesses = [_worsened(tokens, share) for tokens in answers]
                foreseen = [msgspec.structs.replace(a, prediction=g) for a, g in zip(asks.asked, guesses, strict=True)]
                what = f"{num_seqs} sequences, predictions of which {100 * share:.0f} % are right (small bf16)"
                points[num_seqs, share] = _beside(what, sides, [Ask(foreseen)], None, options.reps, console)
    if options.results_dir is not None:
        picture = draw({key: row.ratio or 0.0 for key, row in points.items()})
        ((options.out or PICTURES) / "speculation.svg").write_text(picture, "utf-8")
    return list(points.values())


def _worsened(tokens: Sequence[int], share: float) -> list[int]:
    """Return the tokens, of which that share is right."""
    draw_number = random.Random(3)
    return [token if draw_number.random() < share else (token + 1) % VOCABULARY for token in tokens]


@contextmanager
def _sides(model: Path, options: Options, method: str, *drafter: Path) -> Iterator[Sides]:
    """Start an engine with drafts, perhaps of a draft model, and one without."""
    arguments = (PROBE, str(model), str(options.threads or 1))
    with (
        Helper(*arguments, method, *map(str, drafter), rests=True) as drafting,
        Helper(*arguments, rests=True) as plain,
    ):
        yield drafting, plain


def _encoder(model: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def _ask(case: Case, wish: str, encode: Callable[[str], list[int]]) -> Ask:
    ends, prediction = tuple(encode(END_OF_TURN)), encode(case.prediction)
    prompt, longest = encode(prompt_of(wish)), case.max_tokens
    return Ask([Asked(prompt, longest, temperature=0.0, prediction=prediction, stop_token_ids=ends)])


def _load(num_seqs: int = NUM_SEQS) -> Ask:
    prompts = [request.prompt for request in make_workload("W4", vocab_size=4096, count=num_seqs).requests]
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


def _beside(what: str, sides: Sides, asks: Sequence[Ask], goal: Goal | None, num_pairs: int, console: Console) -> Row:
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
    passes = f"{plain.num_passes / drafting.num_passes:.2f} × the tokens in a pass"
    ratios = ", ".join(f"{drafting.tokens_per_s / plain.tokens_per_s:.2f}" for drafting, plain in pairs)
    console.print(f"  {what}: {passes}; ratios {ratios}", highlight=False)
    return Row(what, drafting.tokens_per_s, SPEED_UNIT, plain.tokens_per_s, goal)


def _proposing(options: Options, console: Console) -> list[Row]:
    del options, console
    return [_propose()]


def _propose() -> Row:
    """Return the median time to note a token and to propose, in a long text of few words."""
    draw = random.Random(7)
    drafts = SequenceDrafts([draw.randrange(VOCABULARY) for _ in range(LONG_TOKENS)], 2 * LONG_TOKENS)
    costs = EqualRows(0.0)
    while len(drafts.propose(costs, 8)) < 8:  # takes the text in over several passes
        drafts.append([draw.randrange(VOCABULARY)])
    seconds = []
    for _ in range(NUM_PROPOSALS):
        token = draw.randrange(VOCABULARY)
        began_s = time.perf_counter()
        drafts.append([token])
        drafts.propose(costs, 8)
        seconds.append(time.perf_counter() - began_s)
    what = f"to propose for a sequence of {LONG_TOKENS} tokens, median of {NUM_PROPOSALS}"
    return Row(what, 1e6 * median(seconds), "µs", goal=AtMost(10))


PARTS: Mapping[str, Measure] = MappingProxyType(
    {
        "tasks": _tasks,
        "again": _again,
        "load": _under_load,
        "draft": _draft_model,
        "proposing": _proposing,
        "step": _step,
        "grid": _grid,
    }
)

if __name__ == "__main__":
    main("speculation", __doc__, measure)
