"""The program that compiles what callers bind answers by: a process of its own, which such a thing may kill.

The front sends orders, and kills this process when an answer is late. An answer is the grammar as llguidance reads it,
or why it is refused.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dormouse_worker.common.grammar import GrammarRefused, compile_grammar, make_tokenizer, special_tokens
from dormouse_worker.front.text.grammar_text import to_text
from dormouse_worker.front.text.orders import (
    MAX_REFUSAL_CHARS,
    REFUSED,
    TEXT,
    answer_orders,
    encode,
    limit_memory,
    read,
)

STACK_BYTES = 8 << 20  # the engine has more, for what passed here


class Checker:
    """Compiles for one model."""

    def __init__(self, tokenizer_file: str, end_token_ids: list[int]) -> None:
        """Read the tokenizer. Raises GrammarRefused."""
        self._tokenizer = make_tokenizer(Path(tokenizer_file), end_token_ids)
        self._special_tokens = special_tokens(msgspec.json.decode(Path(tokenizer_file).read_bytes()))

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to an order."""
        try:
            text = to_text(order, self._special_tokens)
            compile_grammar(self._tokenizer, text)
        except GrammarRefused as error:
            return {REFUSED: str(error)[:MAX_REFUSAL_CHARS]}
        except RecursionError:
            return {REFUSED: "it is nested too deeply"}
        return {TEXT: text}


def main() -> None:
    """Take the tokenizer that the first message names, say so, then compile until the front is gone."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setup = read(source)
    if setup is None:
        return
    try:
        checker = Checker(setup["tokenizer_file"], setup["end_token_ids"])
    except GrammarRefused as error:
        sink.write(encode({REFUSED: str(error)[:MAX_REFUSAL_CHARS]}))
        return
    limit_memory(setup["memory_bytes"])
    answer_orders(source, sink, checker.answer, seconds=setup["seconds"])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the front ends this process when it ends itself
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
