"""Structured outputs of a real worker, over gRPC: clients get what they ask for, and hostile calls hurt nobody."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import grpc
import jsonschema
import pytest

from dormouse_api.v1 import inference_pb2 as pb

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}
BOUND = pb.StructuredOutputs(json_schema=json.dumps(SCHEMA), disable_any_whitespace=True)
ENDLESS = pb.StructuredOutputs(json_schema='{"type": "integer", "multipleOf": 99999989}')


def text_of(messages):
    assert messages[-1].finish_reason == pb.FINISH_REASON_STOP
    return "".join(message.text for message in messages)


def test_every_choice_is_what_the_schema_accepts_and_a_seed_repeats_it(worker):
    def ask():
        ask = {"temperature": 1.5, "seed": 7, "n": 4, "max_tokens": 200, "structured_outputs": BOUND}
        messages = list(worker.stream([5, 80, 300], **ask))
        return [text_of([m for m in messages if m.choice_index == choice]) for choice in range(4)]

    first = ask()
    for text in first:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(set(first)) > 1
    assert ask() == first


def test_bound_calls_hostile_ones_and_free_ones_at_once_each_get_theirs(worker):
    free = worker.greedy([17] * 40, 32)

    def refused():
        with pytest.raises(grpc.RpcError) as caught:
            list(worker.stream([5], max_tokens=9, structured_outputs=ENDLESS))
        return caught.value.code()

    def bound(seed):
        ask = {"temperature": 1.0, "seed": seed, "max_tokens": 200, "structured_outputs": BOUND}
        return text_of(list(worker.stream([9, 9, seed], **ask)))

    with ThreadPoolExecutor(8) as pool:
        hostile = pool.submit(refused)
        others = [pool.submit(worker.greedy, [17] * 40, 32) for _ in range(3)]
        for text in pool.map(bound, range(6)):
            jsonschema.validate(json.loads(text), SCHEMA)
        assert [other.result() for other in others] == [free] * 3
        assert hostile.result() is grpc.StatusCode.INVALID_ARGUMENT
