"""The cases of a run: prompts, transformers' greedy answers to them, and what the quiet cluster samples by seed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.prober.cases import REFERENCE_TOKENS, Case, Question

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
FIRST_SEED = 1000


def greedy_cases(model: Path) -> list[Case]:
    """Return the cases that transformers answers; kept beside the model, since they never change."""
    from tokenizers import Tokenizer

    from tools import reference

    kept = model.parent / f"{model.name}-greedy-{REFERENCE_TOKENS}.json"
    tokenizer: Any = Tokenizer.from_file(str(model / "tokenizer.json"))
    prompts = [tuple(tokenizer.encode(text).ids) for text in TEXTS]
    if not kept.exists():
        answers = [reference.greedy_tokens(model, list(prompt), REFERENCE_TOKENS) for prompt in prompts]
        kept.write_text(json.dumps(answers), "utf-8")
    answers = json.loads(kept.read_text("utf-8"))
    return [Case(Question(prompt), tuple(answer)) for prompt, answer in zip(prompts, answers, strict=True)]


async def sampled_cases(stub: Any, model: str, prompts: Sequence[tuple[int, ...]], *, first_seed: int) -> list[Case]:
    """Record what the cluster samples, one request at a time while nothing else runs, each twice.

    Raises AssertionError if the two differ: then there is nothing to compare with.
    """
    questions = [Question(prompt, first_seed + index) for index, prompt in enumerate(prompts)]
    first = [await _answer(stub, model, question) for question in questions]
    again = await asyncio.gather(*(_answer(stub, model, question) for question in questions))
    for question, one, other in zip(questions, first, again, strict=True):
        assert one == other, f"seed {question.seed} gave two answers on a quiet cluster: {one} and {other}"
    return [Case(question, answer) for question, answer in zip(questions, first, strict=True)]


async def _answer(stub: Any, model: str, question: Question) -> tuple[int, ...]:
    request = question.request(model, REFERENCE_TOKENS, stream_interval=64)
    call = stub.Generate(request, timeout=120, wait_for_ready=True)
    tokens = tuple([token async for response in call for token in response.token_ids])
    assert len(tokens) == REFERENCE_TOKENS, f"seed {question.seed}: {len(tokens)} of {REFERENCE_TOKENS} tokens"
    return tokens
