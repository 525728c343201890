"""Which tokens may come next in sequences that a grammar binds: grammars compiled once each, one matcher a sequence.

Compiling and masking have a thread each, with a deep stack: llguidance lets the interpreter's lock go, so that masks
are made while the pass computes, and a slow grammar holds up nobody but its own request.
A matcher only ever follows the output: whoever begins anew (a resume, a preemption, a fresh batch) feeds it once more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from dormouse_worker.common.grammar import (
    Grammar,
    GrammarRefused,
    compile_grammar,
    forced_by,
    make_tokenizer,
    mask_of,
    words_of,
)

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

STACK_BYTES = 64 << 20  # of address space: eight times what the front's check has
MAX_COMPILED = 64  # grammars that are kept for the next request with the same one

Mask = bytes | GrammarRefused  # a bit for each token, the lowest first; or why there is none


class Preparation(Protocol):
    """A grammar that is being compiled."""

    def is_done(self, timeout_s: float = 0.0) -> bool:
        """Return whether it is compiled, or refused, by now or within so long."""


class Prepared:
    """Implements `Preparation` where nobody compiles before a sequence comes."""

    def is_done(self, timeout_s: float = 0.0) -> bool:
        """See `Preparation`."""
        del timeout_s
        return True


class Compilation:
    """Implements `Preparation`: the thread's promise of a matcher at the beginning of the output."""

    def __init__(self, compiled: Future[LLMatcher]) -> None:
        self._compiled = compiled

    def __repr__(self) -> str:
        return f"Compilation(done={self.is_done()})"

    def is_done(self, timeout_s: float = 0.0) -> bool:
        """See `Preparation`."""
        return self._compiled.done() or bool(timeout_s and wait([self._compiled], timeout_s).done)

    def result(self) -> LLMatcher:
        """Return the matcher once it is there. Raises GrammarRefused."""
        return self._compiled.result()


class Matcher:
    """Follows one sequence's output. Its grammar may still be compiling."""

    def __init__(self, compilation: Compilation, end_token_ids: Sequence[int]) -> None:
        self._compilation = compilation
        self._end_token_ids = end_token_ids
        self._matcher: LLMatcher | None = None
        self.num_tokens = 0  # of the output that it has seen

    def __repr__(self) -> str:
        return f"Matcher({self.num_tokens} tokens, {self._compilation!r})"

    def mask_after(self, new_token_ids: Sequence[int]) -> bytes:
        """Return what may follow the output, which has grown by these tokens. Raises GrammarRefused."""
        if self._matcher is None:
            self._matcher = self._compilation.result().deep_copy()
        self.num_tokens += len(new_token_ids)
        if new_token_ids and not self._matcher.consume_tokens(list(new_token_ids)):
            raise GrammarRefused(words_of(self._matcher))
        return mask_of(self._matcher)

    def force_after(self, token_id: int, most: int) -> tuple[int, ...]:
        """Take the output's next token; return those that can only follow it, `most` at most, which are taken, too.

        To be called after a mask. A token that does not follow is told with the next one.
        """
        matcher, ends = self._matcher, self._end_token_ids
        assert matcher is not None, "a mask comes first"
        self.num_tokens += 1
        if token_id in ends or not matcher.consume_tokens([token_id]):
            return ()
        forced = forced_by(matcher, most)
        if matcher.is_stopped() and len(ends) == 1 and len(forced) < most:
            forced += tuple(ends)
        self.num_tokens += len(forced)
        return forced


class Grammars:
    """Owns a model's compiled grammars and the threads. Keeps those that somebody holds, and the last ones used."""

    def __init__(self, tokenizer_file: Path) -> None:
        """Read nothing and start nothing yet: most models never meet a grammar."""
        self._tokenizer_file = tokenizer_file
        self._tokenizers: dict[tuple[int, ...], LLTokenizer] = {}
        self._known: WeakValueDictionary[Grammar, Compilation] = WeakValueDictionary()
        self._recent: OrderedDict[Grammar, Compilation] = OrderedDict()

    def __repr__(self) -> str:
        return f"Grammars({len(self._known)} compiled, {self._tokenizer_file.parent.name})"

    @cached_property
    def _compiler(self) -> ThreadPoolExecutor:
        return _deep_thread("grammar")

    @cached_property
    def _masker(self) -> ThreadPoolExecutor:
        return _deep_thread("masks")

    def prepare(self, grammar: Grammar) -> Compilation:
        """Begin to compile, unless that is done or begun; what is returned keeps the grammar."""
        compilation = self._known.get(grammar)
        if compilation is None:
            compilation = self._known[grammar] = Compilation(self._compiler.submit(self._compile, grammar))
        self._recent[grammar] = compilation
        self._recent.move_to_end(grammar)
        if len(self._recent) > MAX_COMPILED:
            self._recent.popitem(last=False)
        return compilation

    def matcher(self, grammar: Grammar) -> Matcher:
        """Return a matcher at the beginning of the output."""
        return Matcher(self.prepare(grammar), grammar.end_token_ids)

    def masks(self, wanted: Sequence[tuple[Matcher, Sequence[int]]]) -> Callable[[], list[Mask]]:
        """Begin to make a mask for each matcher, whose output has grown by these tokens; return who waits for them."""
        return self._masker.submit(_make_masks, wanted).result

    def force(self, said: Sequence[tuple[Matcher, int, int]]) -> list[tuple[int, ...]]:
        """Return what can only follow, for each matcher, behind the token that was just said; so many at most."""
        return self._masker.submit(_force_each, said).result()

    def close(self) -> None:
        """End the threads, once what they do is done."""
        for name in ("_compiler", "_masker"):
            if (thread := self.__dict__.get(name)) is not None:
                thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        ends = grammar.end_token_ids
        if ends not in self._tokenizers:
            self._tokenizers[ends] = make_tokenizer(self._tokenizer_file, ends)
        return compile_grammar(self._tokenizers[ends], grammar.text)


def _make_masks(wanted: Sequence[tuple[Matcher, Sequence[int]]]) -> list[Mask]:
    return [_make_mask(matcher, token_ids) for matcher, token_ids in wanted]


def _make_mask(matcher: Matcher, token_ids: Sequence[int]) -> Mask:
    try:
        return matcher.mask_after(token_ids)
    except GrammarRefused as error:
        return error


def _force_each(said: Sequence[tuple[Matcher, int, int]]) -> list[tuple[int, ...]]:
    return [matcher.force_after(token_id, most) for matcher, token_id, most in said]


def _deep_thread(name: str) -> ThreadPoolExecutor:
    """Return an executor whose one thread has a deep stack."""
    before = threading.stack_size(STACK_BYTES)
    try:
        executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        executor.submit(int).result()  # the thread starts with its first work
    finally:
        threading.stack_size(before)
    return executor
