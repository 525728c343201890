"""What a response that passes by costs its key."""

import pytest

from dormouse_gateway.clients.keys import Caller
from dormouse_gateway.picker.toll import Toll
from dormouse_gateway.routing.policy import Demand


class Admission:
    """Keeps what it is told."""

    headers = ()

    def __init__(self):
        self.added = []

    def add(self, tokens):
        self.added.append(tokens)


def toll(**fields):
    made = Toll(Caller(admission=Admission()), Demand(prompt_tokens=7, output_tokens=100), **fields)
    made.is_good = True
    return made


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([b'{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}}'], 8),
        ([b'{"text": "a"}, "usage": {"prompt_to', b'kens":5,"completion_tokens":30,"total_tokens":35}}'], 35),
        ([b'{"usage": {"input_tokens": 4, "output_tokens": 2}}'], 6),
        ([b"data: {}\n\n", b"data: {}\n\ndata: [DONE]\n\n"], 7 + 3),
        ([], 107),
    ],
)
def test_usage_counts_where_it_is_told_else_events_else_what_was_foreseen(parts, tokens):
    made = toll()
    for part in parts:
        made.pass_by(part)
    made.charge()
    assert made.caller.admission.added == [tokens]


def test_a_refusal_costs_nothing_and_a_key_without_limits_keeps_nothing():
    refused = toll()
    refused.is_good = False
    refused.charge()
    assert refused.caller.admission.added == []
    free = Toll(Caller(), Demand())
    free.pass_by(b"data: x")
    free.charge()
    assert free.tokens == 0
