"""The workloads are those of the definition, request for request."""

from __future__ import annotations

import pytest

from bench.workload import FIRST_ID, make_workload

SHAPES = (
    {},
    {"rep": 1},
    {"rep": 3},
    {"count": 5},
    {"seed": 8, "rep": 1},
    {"vocab_size": 32000, "rep": 2},
    {"vocab_size": 32000, "count": 70},
)
AGREED = {  # of each shape: which requests, and how many tokens are generated in all
    "W1": (
        ("7f9505c06b1eb3cb", 9_083),
        ("3724b5b62cfcc29c", 9_083),
        ("8d59fe8cf18f77f1", 9_083),
        ("f6234f43e0f4714b", 919),
        ("25162f16406bec45", 9_454),
        ("42b8001d97b8f6c4", 9_083),
        ("c1680c552d202d15", 9_968),
    ),
    "W2": (
        ("2f85d2b5d249a7f2", 128),
        ("fb755e207090d558", 128),
        ("e9b29cbf08650d97", 128),
        ("5276fdc075258c7a", 640),
        ("b7b14516247c674d", 128),
        ("e450492ddce4ba28", 128),
        ("7c63cdfa7c8e460d", 8_960),
    ),
    "W3": (
        ("5b09cad63ddbf670", 1_024),
        ("7e15c5ec6d9463b0", 1_024),
        ("9ef8a1fc90a0af07", 1_024),
        ("b4698c3e3206eca2", 160),
        ("ff7f1ceccfbe45dc", 1_024),
        ("13ef07389f617915", 1_024),
        ("51054a12e5605b58", 2_240),
    ),
    "W4": (
        ("c8116b7e124b9d53", 8_192),
        ("1575ec5e33d0545b", 8_192),
        ("7e89ada0d8b1d917", 8_192),
        ("105f12ee93708a88", 640),
        ("0b85fae8572fdda0", 8_192),
        ("a5b27382944e4ab0", 8_192),
        ("b580bd8e3be52700", 8_960),
    ),
}


@pytest.mark.parametrize("name", AGREED)
@pytest.mark.parametrize("index", range(len(SHAPES)), ids=[str(shape) for shape in SHAPES])
def test_the_requests_are_the_ones_that_were_agreed(name, index):
    made = make_workload(name, **{"vocab_size": 4096} | SHAPES[index])
    assert (made.digest(), sum(request.max_tokens for request in made.requests)) == AGREED[name][index]


def test_repetitions_have_the_same_shape_and_share_no_prompt():
    first, second = (make_workload("W1", vocab_size=4096, rep=rep).requests for rep in (0, 1))
    assert [(len(r.prompt), r.max_tokens) for r in first] == [(len(r.prompt), r.max_tokens) for r in second]
    assert all(one.prompt[:4] != other.prompt[:4] for one, other in zip(first, second, strict=True))


def test_no_prompt_holds_a_special_token():
    requests = make_workload("W4", vocab_size=8).requests
    assert {token for request in requests for token in request.prompt} == set(range(FIRST_ID, 8))


def test_an_unknown_workload_is_refused():
    with pytest.raises(KeyError, match="W9"):
        make_workload("W9", vocab_size=4096)
