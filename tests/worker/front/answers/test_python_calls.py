"""One argument of a call in Python is read at once: how long and how deep it may be."""

from __future__ import annotations

import json

import pytest

from dormouse_worker.front.answers.closable_json import MAX_DEPTH
from dormouse_worker.front.answers.python_calls import MAX_LITERAL_CHARS
from tests.worker.front.answers.corpus import SAMPLES, collected


def read(literal: str) -> object:
    """Return an argument that is written so, or None where it ends its call."""
    parser = SAMPLES["pythonic"].parser()
    text = f"[weather(city={literal})]"
    said = collected([*parser.feed(text[:-9]), *parser.feed(text[-9:]), *parser.finish()])
    ((name, arguments),) = said.calls
    assert name == "weather"
    return json.loads(arguments).get("city")


@pytest.mark.parametrize("more", [0, 1])
def test_a_string_may_be_as_long_as_an_argument(more: int):
    text = "x" * (MAX_LITERAL_CHARS - 2 + more)
    assert read(f"'{text}'") == (None if more else text)


@pytest.mark.parametrize("more", [0, 1])
def test_escapes_count_too(more: int):
    num_escapes = MAX_LITERAL_CHARS // 2 - 2
    text = "x" * (2 + more) + "\\n" * num_escapes
    assert read(f"'{text}'") == (None if more else "xx" + "\n" * num_escapes)


@pytest.mark.parametrize("more", [0, 1])
def test_all_of_a_list_counts(more: int):
    numbers = [1] * (MAX_LITERAL_CHARS // 2 - 1)
    assert read(" " * more + "[" + "1," * len(numbers) + "]") == (None if more else numbers)


@pytest.mark.parametrize("more", [0, 1])
def test_brackets_are_nested_so_deep(more: int):
    nested: object = []
    for _ in range(MAX_DEPTH - 1 + more):
        nested = [nested]
    assert read(json.dumps(nested)) == (None if more else nested)
