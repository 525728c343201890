"""Which tokens may come next in sequences that a grammar binds: grammars compiled once each, one matcher a sequence.

Compiling and masking have a thread each, with a deep stack: llguidance lets the interpreter's lock go, so that masks
are made while the pass computes, and a slow grammar holds up nobody but its own request.
A matcher only ever follows the output: whoever begins anew (a resume, a preemption, a fresh batch) feeds it once more.
Along a sequence's drafts it goes as far as they follow, for a mask behind each, and comes back at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
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

Mask = bytes  # a bit for each token, the lowest first
Masks = list[Mask] | GrammarRefused  # of the next token, and of those behind drafts that follow; or why there is none


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
        self._ahead: Mask | None = None  # the next mask, made before somebody asked
        self.num_tokens = 0  # of the output that it has seen

    def __repr__(self) -> str:
        return f"Matcher({self.num_tokens} tokens, {self._compilation!r})"

    def masks_along(self, new_token_ids: Sequence[int], drafts: Sequence[int]) -> list[Mask]:
        """Return what may follow the output, which has grown by these tokens, and what behind each draft that follows.

        Raises GrammarRefused if nothing may follow the output.
        """
        masks = [self._mask_after(new_token_ids)]
        try:
            masks += self._masks_behind(drafts, masks[0])
        except GrammarRefused:  # what nobody has said yet takes too long: it is not to be held against the output
            self._matcher, self._ahead, self.num_tokens = None, None, 0
        return masks

    def made_ahead(self, growth: Growth) -> Mask | None:
        """Return the only mask that is wanted where it is there already. For the thread that asks for masks."""
        return None if growth.token_ids or growth.drafts else self._ahead

    def look_ahead(self) -> None:
        """Make the next mask before somebody asks for it; who asks is told what is wrong."""
        if self._matcher is not None:
            with suppress(GrammarRefused):
                self._ahead = mask_of(self._matcher)

    def _masks_behind(self, drafts: Sequence[int], mask: Mask) -> list[Mask]:
        """Return the masks behind drafts as far as these follow and do not end it; the matcher stands as before."""
        matcher, masks = self._matcher, []
        assert matcher is not None, "a mask came first"
        for token_id in drafts:
            if token_id in self._end_token_ids or not _allows(mask, token_id):
                break
            if not matcher.consume_tokens([token_id]):
                raise GrammarRefused(words_of(matcher))
            mask = mask_of(matcher)
            masks.append(mask)
        if masks and not matcher.rollback(len(masks)):
            raise GrammarRefused(words_of(matcher))
        return masks

    def _mask_after(self, new_token_ids: Sequence[int]) -> Mask:
        if self._ahead is not None and not new_token_ids:
            return self._ahead
        self._ahead = None
        if self._matcher is None:
            self._matcher = self._compilation.result().deep_copy()
        self.num_tokens += len(new_token_ids)
        if new_token_ids and not self._matcher.consume_tokens(list(new_token_ids)):
            raise GrammarRefused(words_of(self._matcher))
        return mask_of(self._matcher)

    def force_after(self, token_ids: Sequence[int], most: int) -> tuple[int, ...]:
        """Take the output's next tokens; return those that can only follow them, `most` at most, which are taken, too.

        A token that does not follow is told with the next one's mask.
        """
        matcher, ends = self._take(token_ids), self._end_token_ids
        if matcher is None:
            return ()
        forced = forced_by(matcher, most)
        matcher.consume_tokens(list(forced))
        if matcher.is_stopped() and len(ends) == 1 and len(forced) < most:
            forced += tuple(ends)
        self.num_tokens += len(forced)
        return forced

    def expect_after(self, token_ids: Sequence[int], most: int) -> tuple[int, ...]:
        """Take the output's next tokens; return those that can only follow, `most` at most, which are not taken."""
        matcher = self._take(token_ids)
        return () if matcher is None else forced_by(matcher, most)

    def _take(self, token_ids: Sequence[int]) -> LLMatcher | None:
        """Take the output's next tokens; return what tells of more, None where they end it or do not follow."""
        matcher, self._ahead = self._matcher, None
        if matcher is None:  # masks behind drafts took too long: the next mask takes all of the output
            return None
        self.num_tokens += len(token_ids)
        ends = any(token_id in self._end_token_ids for token_id in token_ids)
        return None if ends or not matcher.consume_tokens(list(token_ids)) else matcher


class Growth(NamedTuple):
    """By what a matcher's output has grown, and drafts of what comes next."""

    matcher: Matcher
    token_ids: Sequence[int]
    drafts: Sequence[int] = ()


class Said(NamedTuple):
    """What was sampled for a matcher's output, and how many tokens may be forced behind it."""

    matcher: Matcher
    token_ids: Sequence[int]
    most: int
    takes_forced: bool  # they are its output, too; else they are only told


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

    def masks(self, wanted: Sequence[Growth]) -> Callable[[], list[Masks]]:
        """Begin to make the masks of each matcher; return who waits for them."""
        ready = [growth.matcher.made_ahead(growth) for growth in wanted]
        known: list[Masks] = [[mask] for mask in ready if mask is not None]
        if len(known) == len(ready):
            return lambda: known
        return self._masker.submit(_make_masks, wanted).result

    def force(self, said: Sequence[Said]) -> list[tuple[int, ...]]:
        """Return what can only follow, for each matcher, behind what was just said.

        The thread goes on to the next masks, while the caller makes the next pass ready: a pass wants all cores.
        """
        forced = self._masker.submit(_force_each, said)
        self._masker.submit(_look_ahead, [each.matcher for each in said])
        return forced.result()

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


def _make_masks(wanted: Sequence[Growth]) -> list[Masks]:
    return [_make_each(growth) for growth in wanted]


def _make_each(growth: Growth) -> Masks:
    try:
        return growth.matcher.masks_along(growth.token_ids, growth.drafts)
    except GrammarRefused as error:
        return error


def _force_each(said: Sequence[Said]) -> list[tuple[int, ...]]:
    return [_force(each) for each in said]


def _look_ahead(matchers: Sequence[Matcher]) -> None:
    for matcher in matchers:
        matcher.look_ahead()


def _force(said: Said) -> tuple[int, ...]:
    matcher = said.matcher
    return (matcher.force_after if said.takes_forced else matcher.expect_after)(said.token_ids, said.most)


def _allows(mask: Mask, token_id: int) -> bool:
    return token_id >> 3 < len(mask) and bool(mask[token_id >> 3] >> (token_id & 7) & 1)


def _deep_thread(name: str) -> ThreadPoolExecutor:
    """Return an executor whose one thread has a deep stack."""
    before = threading.stack_size(STACK_BYTES)
    try:
        executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        executor.submit(int).result()  # the thread starts with its first work
    finally:
        threading.stack_size(before)
    return executor
