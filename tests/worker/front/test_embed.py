"""Embed as a caller sees it: vectors, limits, and what a model of another task says."""

import asyncio
import json

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AbortRequests, ModelInfo, State
from dormouse_worker.common.task_messages import AddPooling
from dormouse_worker.front.testing import write_model
from dormouse_worker.testing.fake_engine import FAKE_DIMENSIONS, MODEL_LEN, Script

Code = grpc.StatusCode
EMBEDS = Script(model=ModelInfo(1234, "float32", task="embed", embedding_size=FAKE_DIMENSIONS))


@pytest.fixture(scope="module")
def encoder_path(tmp_path_factory):
    """A directory whose files say that the model makes vectors."""
    path = write_model(tmp_path_factory.mktemp("encoder"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    return path


@pytest.fixture
async def embedder(open_house, encoder_path):
    """A front in READY whose engine makes vectors."""
    async with open_house(EMBEDS, path=encoder_path) as house:
        yield house


def embed(house, *inputs, timeout=90, **fields):
    given = [
        pb.EmbedInput(text=one) if isinstance(one, str) else pb.EmbedInput(token_ids=pb.TokenIds(ids=one))
        for one in inputs
    ]
    return house.inference.Embed(pb.EmbedRequest(inputs=given, **fields), timeout=timeout)


async def test_every_text_gets_its_vector_in_order(embedder):
    answer = await embed(embedder, "hi", [1, 2, 3], request_id="mine")
    vectors = [list(embedding.values) for embedding in answer.embeddings]
    hi = [float(token_id) for token_id in (await embedder.tokenize("hi")).token_ids]
    assert vectors == [[2.0, *hi, 0.0], [3.0, 1.0, 2.0, 3.0]]
    assert (answer.usage.prompt_tokens, answer.request_id) == (5, "mine")
    assert (answer.timings.queue_seconds, answer.timings.prefill_seconds) == (0.25, 0.5)


async def test_wishes_reach_the_engine(embedder):
    answer = await embed(embedder, "hi", dimensions=2, normalize=False, priority=7)
    assert len(answer.embeddings[0].values) == 2
    sent = embedder.engine.engine.received[-1]
    assert (sent.params.dimensions, sent.params.normalize, sent.priority) == (2, False, 7)
    await embed(embedder, "hi")
    assert embedder.engine.engine.received[-1].params.normalize is None


@pytest.mark.parametrize(
    ("inputs", "fields", "words"),
    [
        ((), {}, "inputs is 0 texts; allowed: 1 to 2048"),
        (([1],) * 2049, {}, "inputs is 2049 texts; allowed: 1 to 2048"),
        (("a", ""), {}, r"inputs\[1\] is empty; allowed: at least 1 character, or 1 token"),
        (([],), {}, r"inputs\[0\] is empty"),
        (([1, 260],), {}, r"inputs\[0\].token_ids\[1\] is 260; allowed: below the vocabulary size 260"),
        (("a",), {"dimensions": 5}, "dimensions is 5; allowed: at most 4, as the model's vectors have"),
        (("a",), {"priority": 101}, "priority is 101; allowed: from -100 to 100"),
        (("a",), {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0; allowed: -1, or at least 1"),
        (("a",), {"request_id": "ä"}, "request_id is .*; allowed: printable ASCII characters"),
        (
            ("a" * 65,),
            {},
            rf"inputs\[0\] is 65 tokens; allowed: at most the model length {MODEL_LEN}; truncate_prompt_t",
        ),
        (
            ("b", "a" * 1_000_000),
            {},
            rf"inputs\[1\] is at least \d+ tokens; allowed: at most the model length {MODEL_LEN};",
        ),
        (([1] * 65,), {"truncate_prompt_tokens": -1}, rf"inputs\[0\] is 65 tokens; allowed: at most .* {MODEL_LEN}$"),
    ],
)
async def test_what_is_wrong_is_refused_by_field_value_and_limit(embedder, inputs, fields, words):
    error = await embedder.refusal(embed(embedder, *inputs, **fields))
    assert error.code() is Code.INVALID_ARGUMENT
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(error.details())
    assert not any(isinstance(message, AddPooling) for message in embedder.engine.engine.received)


async def test_a_long_text_is_cut_as_asked(embedder):
    answer = await embed(embedder, "a" * 100_000, "b" * 5, truncate_prompt_tokens=10)
    assert [embedding.values[0] for embedding in answer.embeddings] == [10.0, 5.0]
    answer = await embed(embedder, "a " * 100_000, truncate_prompt_tokens=-1)
    assert answer.embeddings[0].values[0] == MODEL_LEN


async def test_vectors_that_fit_no_answer_are_refused_before_anything_is_computed(open_house, encoder_path):
    wide = Script(model=ModelInfo(1, "float32", task="embed", embedding_size=4096))
    async with open_house(wide, path=encoder_path) as house:
        error = await house.refusal(embed(house, *["a"] * 61))
        assert "inputs is 61 texts; allowed: at most 60 with vectors of 4096 numbers" in error.details()
        await embed(house, *["a"] * 61, dimensions=4)


async def test_only_trained_dimensions_are_taken_where_the_files_tell_them(open_house, encoder_path):
    nested = Script(model=ModelInfo(1, "float32", task="embed", embedding_size=4, dimensions=(2, 4)))
    async with open_house(nested, path=encoder_path) as house:
        error = await house.refusal(embed(house, "a", dimensions=3))
        assert error.details() == "dimensions is 3; allowed: 2, 4, which the model was trained for"


async def test_each_task_names_the_call_that_it_answers(house, embedder):
    error = await house.refusal(embed(house, "a"))
    assert (error.code(), error.details()) == (
        Code.FAILED_PRECONDITION,
        "the model's task is generate, which Embed does not do; call Generate (/v1/chat/completions, /v1/completions)",
    )
    call = embedder.generate("a")
    error = await embedder.refusal(call.read())
    assert error.code() is Code.FAILED_PRECONDITION
    assert "the model's task is embed, which Generate does not do; call Embed (/v1/embeddings)" in error.details()


async def test_the_model_tells_its_task(embedder, house):
    told = await embedder.inference.GetModel(pb.GetModelRequest(), timeout=90)
    assert (told.task, told.embedding_size) == ("embed", FAKE_DIMENSIONS)
    assert (await house.inference.GetModel(pb.GetModelRequest(), timeout=90)).task == "generate"


async def test_asleep_nothing_is_taken(embedder):
    await embedder.operate("Sleep", level=1)
    assert (await embedder.refusal(embed(embedder, "a"))).code() is Code.UNAVAILABLE


async def test_a_call_counts_as_a_request_and_a_drain_waits_for_it(embedder):
    embedder.engine.engine.has_muted_vectors = True
    call = embed(embedder, "a")
    await embedder.engine.until_received(lambda message: isinstance(message, AddPooling))
    drain = await embedder.drained_by(embedder.operate("Drain", timeout_seconds=5))
    assert len(embedder.front.worker.requests) == 1
    call.cancel()
    await drain
    await embedder.engine.until_received(lambda message: isinstance(message, AbortRequests))
    assert len(embedder.front.worker.requests) == 0


async def test_what_the_engine_gave_up_can_be_asked_of_another_worker(embedder):
    embedder.engine.engine.has_muted_vectors = True
    call = embed(embedder, "a")
    await embedder.engine.until_received(lambda message: isinstance(message, AddPooling))
    sleeping = asyncio.create_task(embedder.operate("Sleep", level=1, mode=2))
    assert (await embedder.refusal(call)).code() is Code.UNAVAILABLE
    await sleeping
    await embedder.until_state(State.ASLEEP)


async def test_metrics_count_texts_and_times(embedder):
    await embed(embedder, "abc", [1])
    _, text = await embedder.http("/metrics")
    assert 'vllm:prompt_tokens_total{model_name="tiny"} 4.0' in text
    assert 'vllm:request_success_total{finished_reason="stop",model_name="tiny"} 1.0' in text
    assert 'vllm:request_queue_time_seconds_sum{model_name="tiny"} 0.25' in text
