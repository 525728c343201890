"""In what two sets of allowed tokens differ."""

import pytest

from bench.token_sets import Position, allowed

TEXTS = {1: "a", 2: '"\\', 3: "\x01", 4: "<s>", 5: "0", 6: "b"}
SPECIAL = frozenset({4})


def test_a_masks_tokens_are_its_bits_the_lowest_first():
    assert allowed(b"\x05\x80\xff", 16) == {0, 2, 15}


@pytest.mark.parametrize(
    ("ours", "theirs", "text", "is_forced", "expected"),
    [
        ({1}, {1}, "", False, "equal"),
        ({1}, {1, 6}, "", True, "one spelling"),
        ({1}, {1, 6}, "", False, "other"),
        ({1, 6}, {1}, "", True, "other"),
        ({1, 2}, {1, 3, 4}, '"', False, "escapes"),
        ({1, 2}, {1}, '"', False, "escapes"),
        ({1}, {1, 3}, '"', False, "escapes"),
        ({1, 2}, {1, 6}, '"', False, "other"),
        ({1, 5}, {1}, "-", False, "minus zero"),
        ({1, 5}, {1}, "1", False, "other"),
        ({1, 5}, {1, 6}, "-", False, "other"),
    ],
)
def test_what_differs_is_named_and_what_is_not_known_is_another_thing(ours, theirs, text, is_forced, expected):
    position = Position(frozenset(ours), frozenset(theirs), text, is_forced)
    assert position.difference(TEXTS.__getitem__, SPECIAL) == expected
