"""The cases of a run: prompts, transformers' greedy answers to them, and what the quiet cluster answers to others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.prober.cases import GREEDY_TOKENS, LONG_TOKENS, SAMPLED_TOKENS, Case, Question

TEXTS = (
    "def sleep(self, seconds):",
    "Return the number of",
    "import os\nimport sys\n\n",
    "class Dormouse(object):\n    ",
    "The quick brown fox",
    "Raise ValueError if",
    "    for key, value in",
    "x",
)
NUM_RECORDED = 4  # prompts that are asked in the other ways, too


def greedy_cases(model: Path) -> list[Case]:
    """Return the cases that transformers answers; kept beside the model, since they never change."""
    from tokenizers import Tokenizer

    from tools import reference

    kept = model.parent / f"{model.name}-greedy-{GREEDY_TOKENS}.json"
    tokenizer: Any = Tokenizer.from_file(str(model / "tokenizer.json"))
    prompts = [tuple(tokenizer.encode(text).ids) for text in TEXTS]
    if not kept.exists():
        answers = [reference.greedy_tokens(model, list(prompt), GREEDY_TOKENS) for prompt in prompts]
        kept.write_text(json.dumps(answers), "utf-8")
    answers = json.loads(kept.read_text("utf-8"))
    return [Case(Question(prompt), tuple(answer)) for prompt, answer in zip(prompts, answers, strict=True)]


async def recorded_cases(stub: Any, model: str, prompts: Sequence[tuple[int, ...]], *, seed: int) -> list[Case]:
    """Record what the cluster answers while nothing else runs: each question by itself, and once more all together.

    A sampled answer that differs is left out: a number on the edge between two tokens falls now here, now there. Raises
    AssertionError if a greedy one differs, or no sampled one is left: then there is nothing to compare with.
    """
    some = prompts[:NUM_RECORDED]
    endless = await _record(stub, model, [Question(prompt, is_endless=True) for prompt in some], LONG_TOKENS)
    assert len(endless) == len(some), "a greedy answer is another one in company"
    sampled = [Question(prompt, seed + index) for index, prompt in enumerate(some)]
    kept = await _record(stub, model, sampled, SAMPLED_TOKENS)
    assert kept, "every sampled answer is another one in company"
    return [*endless, *kept]


async def _record(stub: Any, model: str, questions: Sequence[Question], max_tokens: int) -> list[Case]:
    """Return the cases of those questions that have the same answer alone and in company."""
    alone = [await _answer(stub, model, question, max_tokens) for question in questions]
    together = await asyncio.gather(*(_answer(stub, model, question, max_tokens) for question in questions))
    answers = zip(questions, alone, together, strict=True)
    return [Case(question, one) for question, one, other in answers if one == other]


async def _answer(stub: Any, model: str, question: Question, max_tokens: int) -> tuple[int, ...]:
    request = question.request(model, max_tokens, stream_interval=64)
    call = stub.Generate(request, timeout=120, wait_for_ready=True)
    return tuple([token async for response in call for token in response.token_ids])
