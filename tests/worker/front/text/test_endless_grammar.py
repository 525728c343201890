"""A grammar whose start needs itself has no finite text; all others are left to the compiler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.front.text.endless_grammar import needs_itself


@pytest.mark.parametrize(
    "lark",
    [
        'start: "a" start',
        "start: start",
        'start: a\na: "x" b // "y"\nb: "(" a ")"',
        'start: ("a" | "b") (start | "c" start)+',
        'start: "|" start\n| /a|b/ start',
        "start: start{2}",
        "start: start{1,}",
        "start: start ~ 2..3",
        '%ignore /\\s+/\n?start[capture="]:", max_tokens=3]: x-y\nx-y: x-y "b"  # or: not',
        'start: %json {"$ref": "#", "a": "}"}',
        'start: A start\nA: "a" | "b"',
        'start: "a" -> end start',
        'start: <[1]> <s> start @sub %regex {"substring_words": "}"}',
    ],
)
def test_what_needs_itself_never_ends(lark):
    assert needs_itself(lark)


@pytest.mark.parametrize(
    "lark",
    [
        "",
        'start: "a" start?',
        'start: "a" start*',
        'start: "a" start{0,2}',
        'start: "a" start{,2}',
        'start: "a" start ~ 0..2',
        'start: "a" [start]',
        'start: "a" (start)?',
        'start: "a" start |',
        'start: "a"\n | "b" start',
        'start: a\na: "b" | a a',
        'start: A\nA: "a" A',
        'start: %json {"type": "object"} "x"',
        "start: unknown",
        "begin: begin",
        # what is not understood, and what cannot stand there
        'start: start ~"a"',
        "start: start ! start",
        "start: a::1\na::_: start",
        "start: (start",
        "start: (start\nb: start",
        "start: start)",
        "start: start %json {",
        "start: start %json {]}",
        '"a" start: start',
    ],
)
def test_what_may_end_is_left_alone(lark):
    assert not needs_itself(lark)


RULES = st.dictionaries(
    st.sampled_from(["start", "a", "b", "c"]),
    st.lists(st.lists(st.sampled_from(["start", "a", "b", "c", '"x"']), max_size=3), min_size=1, max_size=3),
)


@given(RULES)
def test_it_agrees_with_writing_texts_depth_by_depth(rules):
    """The plain definition: a rule has a text of depth n + 1 if all parts of an alternative have one of depth n."""
    lark = "\n".join(f"{name}: {' | '.join(' '.join(body) for body in bodies)}" for name, bodies in rules.items())
    finite = {'"x"', *({"start", "a", "b", "c"} - rules.keys())}
    for _ in range(len(rules)):
        finite |= {name for name, bodies in rules.items() if any(finite.issuperset(body) for body in bodies)}
    assert needs_itself(lark) == ("start" in rules and "start" not in finite)


@pytest.mark.parametrize(
    "lark",
    [
        "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(20_000)) + "r20000: start",
        "start: " + "(" * 50_000 + "start" + ")" * 50_000,
        "start: " + "a[" * 50_000,
        "start: " + "a " * 50_000 + '\na: "b" start',
    ],
    ids=["a chain", "groups", "open brackets", "many parts"],
)
def test_size_is_no_matter(lark):
    """Each word is read once."""
    assert needs_itself(lark) == ("[" not in lark)
