"""The workloads are those of the definition, request for request."""

from __future__ import annotations

import importlib.util

import msgspec
import pytest

from bench.workload import FIRST_ID, make_workload
from tools.bootstrap import ROOT

DIGESTS = {
    ("W1", 4096, 0): "7f9505c06b1eb3cb",
    ("W1", 4096, 1): "3724b5b62cfcc29c",
    ("W1", 32000, 0): "eec189b95dcded58",
    ("W2", 4096, 0): "2f85d2b5d249a7f2",
    ("W3", 4096, 0): "5b09cad63ddbf670",
    ("W3", 32000, 2): "13ef07389f617915",
    ("W4", 4096, 0): "c8116b7e124b9d53",
}
DEFINITION = ROOT.parent / "shared" / "bench" / "workload.py"


@pytest.fixture(scope="module")
def definition():
    if not DEFINITION.is_file():
        pytest.skip("no shared/bench/workload.py lies beside the repository; the committed digests stand for it")
    spec = importlib.util.spec_from_file_location("shared_workload", DEFINITION)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "vocab_size", "rep"), DIGESTS)
def test_the_requests_are_the_ones_that_were_agreed(name, vocab_size, rep):
    assert make_workload(name, vocab_size=vocab_size, rep=rep).digest() == DIGESTS[name, vocab_size, rep]


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"rep": 3}, {"count": 5}, {"seed": 8, "rep": 1}, {"count": 70, "vocab": 32000}],
    ids=["as it is", "rep", "count", "seed", "more"],
)
def test_the_requests_are_those_of_the_definition_beside_the_repository(definition, name, fields):
    theirs = definition.make(name, **fields)
    ours = make_workload(name, **{"vocab_size": 4096, **{_ours(key): value for key, value in fields.items()}})
    assert [msgspec.to_builtins(request) for request in ours.requests] == theirs["requests"]
    assert ours.digest() == theirs["digest"]
    assert ours.num_output_tokens == definition.totals(theirs)[1]


def _ours(name):
    return "vocab_size" if name == "vocab" else name


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
