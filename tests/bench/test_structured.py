"""What the rows of bound answers are made of, and a probe that is cut off and asked for the rest."""

from __future__ import annotations

import jsonschema
import pytest

from bench.structured import _kill_and_resume
from bench.structured_cases import bound_by, make_schema, sixty_fields
from bench.structured_probe import Ask, Asked, Said
from bench.structured_rows import _middle
from bench.structured_validity import is_valid


def test_generated_schemas_are_schemas_and_the_same_each_time():
    schemas = [make_schema(number) for number in range(200)]
    assert schemas == [make_schema(number) for number in range(200)]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
    assert len({str(schema) for schema in schemas}) > 120
    assert len(sixty_fields()["required"]) == 60


def test_an_answer_is_judged_by_its_own_schema():
    number = next(number for number in range(1000) if make_schema(number).get("maxLength") == 3)
    assert is_valid('"abc"', number)
    assert not is_valid('"abcd"', number)
    assert not is_valid('"abc', number)


def test_the_middle_pair_counts():
    assert _middle([(1.0, 2.0), (9.0, 10.0), (30.0, 10.0)]) == (9.0, 10.0)


class Talker:
    """A probe that says the numbers from 1 to the request's seed, two in a pass."""

    def ask(self, ask, kind):
        assert kind is Said
        spans = [range(len(one.said) + 1, min(one.seed, len(one.said) + 2 * ask.num_passes) + 1) for one in ask.asked]
        ended = ["stop" if span.stop > one.seed else "" for span, one in zip(spans, ask.asked, strict=True)]
        return Said([list(span) for span in spans], ended, 1.0, 1.0)


def test_who_is_cut_off_goes_on_elsewhere_until_all_have_ended():
    class Two:
        def randint(self, _first, _last):
            return 2

    asked = {5: Asked([1], 9, seed=9), 6: Asked([1], 9, seed=3)}
    said, kills = _kill_and_resume(asked, [Talker(), Talker()], Two())
    assert said == {5: list(range(1, 10)), 6: [1, 2, 3]}
    assert kills == 2


def test_tokens_per_second_count_all_requests():
    assert Said([[1, 2], [3]], ["stop", ""], 2.0, 1.0).tokens_per_s == pytest.approx(1.5)
    assert Ask([]).num_passes is None
    assert '"json_schema"' in bound_by({"type": "null"}, (1,)).text
