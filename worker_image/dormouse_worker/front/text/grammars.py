"""What callers bind answers by becomes a grammar that the engine can keep, or a refusal that names field and reason.

Compiled here for the error only, in processes of their own: some schemas take minutes, others overflow a stack. What
was asked before is answered at once, a refusal too.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.grammar import Grammar, GrammarRefused
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.text.bounded_process import Job
from dormouse_worker.front.text.process_pool import ProcessPool

FIELD = "sampling_params.structured_outputs"
CALLS_FIELD = "chat.tools"
NICENESS = 10  # a tenth of a core beside a pass that wants all: who streams notices nothing of who compiles
MAX_KNOWN_BYTES = 16 << 20  # of what was asked, with the answers


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What may come before that which is bound. A marker that is a special token has its id, any other None."""

    opening: str
    closing: str
    has_begun: bool  # by the prompt: then they have to come
    opening_id: int | None = None
    closing_id: int | None = None


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """What one grammar may take to compile."""

    seconds: float = 1.6  # of the clock: with what is around it, who asked knows within 2
    start_s: float = 30.0  # until the process answers at all: it reads the tokenizer first
    memory_bytes: int = 256 << 20  # beyond what the process begins with


class Grammars:
    """Owns the processes that compile for one model, and what is known of the last grammars."""

    def __init__(self, tokenizer_file: Path, end_token_ids: Sequence[int], limits: GrammarLimits | None = None) -> None:
        """Start nothing yet."""
        limits = limits or GrammarLimits()
        self._end_token_ids = tuple(end_token_ids)
        self._tokenizer_file = tokenizer_file
        job = Job(
            program="dormouse_worker.front.text.grammar_process",
            subject="it",
            starting="while the tokenizer was read",
            working=f"compiling; allowed are {limits.seconds:g} s and {limits.memory_bytes >> 20} MiB",
            refusal=GrammarRefused,
            seconds=limits.seconds,
            start_s=limits.start_s,
            niceness=NICENESS,
        )
        setup = {"tokenizer_file": str(tokenizer_file), "end_token_ids": list(end_token_ids)}
        self._pool = ProcessPool(job, setup | {"seconds": limits.seconds, "memory_bytes": limits.memory_bytes})
        self._known: OrderedDict[bytes, str | GrammarRefused] = OrderedDict()
        self._known_bytes = 0

    def __repr__(self) -> str:
        return f"Grammars({len(self._known)} known; {self._pool!r})"

    async def compile(
        self,
        asked: pb.StructuredOutputs,
        caller: str,
        thoughts: Thoughts | None = None,
        calls: Mapping[str, Any] | None = None,
    ) -> Grammar:
        """Return the grammar of what a caller asked for, `calls` in tags instead of it allowed.

        Raises CallError INVALID_ARGUMENT naming field and reason.
        """
        kind = asked.WhichOneof("constraint")
        assert kind is not None, "checked with the message"
        order = _order(asked, kind) | ({"calls": calls} if calls is not None else {})
        return await self._compile(order, f"{FIELD}.{kind}", caller, thoughts)

    async def compile_calls(self, calls: Mapping[str, Any], caller: str, thoughts: Thoughts | None = None) -> Grammar:
        """Return the grammar of calls as `call_grammar` has them. Raises as `compile` does."""
        return await self._compile({"kind": "calls", "value": calls}, CALLS_FIELD, caller, thoughts)

    async def _compile(self, order: dict[str, Any], field: str, caller: str, thoughts: Thoughts | None) -> Grammar:
        if thoughts is not None:
            order["thoughts"] = asdict(thoughts)
        key = json.dumps(order).encode()
        answer = self._known.get(key)
        if answer is None:
            answer = await self._ask(order, caller)
            if not isinstance(answer, GrammarRefused) or answer.__cause__ is None:  # else late: it may be the machine
                self._learn(key, answer)
        else:
            self._known.move_to_end(key)
        if isinstance(answer, GrammarRefused):
            refuse(field, f"refused ({answer})", "what can be kept to the letter")
        return Grammar(answer, self._end_token_ids)

    def rest(self) -> None:
        """End the processes that do nothing now."""
        self._pool.rest()

    def close(self) -> None:
        """End all processes."""
        self._pool.close()

    async def _ask(self, order: Mapping[str, Any], caller: str) -> str | GrammarRefused:
        if not self._end_token_ids:
            return GrammarRefused("the model names no end-of-sequence token, so that no answer could end")
        if not self._tokenizer_file.is_file():
            return GrammarRefused("the model has no tokenizer.json of its own, which grammars need")
        try:
            return await self._pool.run(caller, lambda process: process.ask(order))
        except GrammarRefused as error:
            return error

    def _learn(self, key: bytes, answer: str | GrammarRefused) -> None:
        self._known[key] = answer
        self._known_bytes += _size(key, answer)
        while self._known_bytes > MAX_KNOWN_BYTES:
            self._known_bytes -= _size(*self._known.popitem(last=False))


def _order(asked: pb.StructuredOutputs, kind: str) -> dict[str, Any]:
    value = getattr(asked, kind)
    return {
        "kind": kind,
        "value": list(value.options) if kind == "choice" else value,
        "disable_any_whitespace": asked.disable_any_whitespace,
        "disable_additional_properties": asked.disable_additional_properties,
    }


def _size(key: bytes, answer: str | GrammarRefused) -> int:
    return len(key) + len(str(answer))
