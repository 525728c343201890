"""/v1/rerank, /v1/score and /classify: order, parts, what is told, and what is refused."""

import aiohttp
import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_gateway.openai.scores import num_score_calls, score_parts
from dormouse_gateway.openai.shares import MAX_PART_INPUTS
from dormouse_gateway.testing.workers import FakeWorker


@pytest.fixture
async def scorer(house):
    """A worker of the model tiny, which scores by length."""
    worker = FakeWorker(name="one")
    await worker.start()
    await house.add("tiny", [worker])
    yield worker
    await worker.stop()


@pytest.fixture
async def post(house, scorer):
    """Return a function that posts a body of the model tiny; returns status and answer."""
    assert scorer.port
    async with aiohttp.ClientSession(f"http://127.0.0.1:{house.ports.openai}") as session:

        async def send(path, **body):
            async with session.post(path, json={"model": "tiny", **body}) as answer:
                return answer.status, await answer.json()

        yield send


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_documents_come_by_their_scores_equal_ones_in_their_order(post, path):
    status, told = await post(path, query="ab", documents=["c", "dddd", {"text": "ee"}, "f"])
    assert status == 200
    assert [(one["index"], one["relevance_score"]) for one in told["results"]] == [(1, 2), (2, 1), (0, 0.5), (3, 0.5)]
    assert all("document" not in one for one in told["results"])
    assert told["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert told["id"]


async def test_the_best_are_told_with_their_texts_as_asked(post):
    body = {"query": "a", "documents": ["b", {"text": "ccc"}, "dd"], "top_n": 2, "return_documents": True}
    _, told = await post("/v1/rerank", **body)
    assert [(one["index"], one["document"]) for one in told["results"]] == [(1, {"text": "ccc"}), (2, {"text": "dd"})]
    _, told = await post("/v1/rerank", **{**body, "top_n": 2.0})
    assert len(told["results"]) == 2, "a whole number, as JSON Schema has it"
    _, told = await post("/v1/rerank", **{**body, "top_n": 1000})
    assert len(told["results"]) == 3


async def test_a_long_list_comes_back_whole(post, scorer):
    _, told = await post("/v1/rerank", query="a", documents=["b" * (n + 1) for n in range(100)])
    assert [one["index"] for one in told["results"]] == list(range(99, -1, -1))
    assert [seen.method for seen in scorer.seen].count("Score") == -(-100 // MAX_PART_INPUTS)


async def test_wishes_reach_the_worker(post, scorer):
    wishes = {"truncate_prompt_tokens": -1, "max_tokens_per_doc": 7, "use_activation": False, "priority": 5}
    await post("/rerank", query="a", documents=["b"], **wishes)
    seen = scorer.seen[-1].request
    assert {name: getattr(seen, name) for name in wishes} == wishes


async def test_a_text_is_scored_with_one_or_many_and_lists_pair_by_pair(post):
    _, told = await post("/v1/score", text_1="ab", text_2=["c", "dd"])
    assert [(one["index"], one["score"]) for one in told["data"]] == [(0, 0.5), (1, 1)]
    _, told = await post("/score", text_1=["ab", "c"], text_2=["c", "dd"])
    assert [one["score"] for one in told["data"]] == [0.5, 2]
    _, told = await post("/score", text_1=["ab"], text_2="c")
    assert [one["score"] for one in told["data"]] == [0.5]


def test_pairs_are_a_call_each():
    body = {"model": "m", "text_1": ["a", "b"], "text_2": ["c", "d"]}
    assert [(part.start, part.request.query) for part in score_parts(body)] == [(0, "a"), (1, "b")]
    assert num_score_calls(body) == 2
    assert num_score_calls({**body, "text_1": "a", "text_2": ["b"] * 33}) == 3


async def test_texts_get_the_likeliest_label_and_all_numbers(post):
    _, told = await post("/classify", input=["\x40", "\x7f"], use_activation=True)
    assert [(one["index"], one["label"], one["num_classes"]) for one in told["data"]] == [
        (0, "high", 2),
        (1, "high", 2),
    ]
    assert told["data"][0]["probs"] == [0.25, 0.75]
    assert (told["object"], told["model"]) == ("list", "tiny")
    assert told["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert told["id"]
    _, told = await post("/classify", input=[200, 3])
    assert [one["label"] for one in told["data"]] == ["low"]


async def test_labels_are_written_text_by_text(house, scorer):
    """Rendered at once, thousands of labels of each of 2048 texts would stop every other stream for seconds."""
    assert scorer.port
    body = {"model": "tiny", "input": ["a"] * 40}
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{house.ports.openai}") as session,
        session.post("/classify", json=body) as answer,
    ):
        assert answer.headers["transfer-encoding"] == "chunked"
        assert [one["index"] for one in (await answer.json())["data"]] == list(range(40))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a", ""]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "rank_fields": ["text"]}, "rank_fields"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "late": 1}, "late"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"] * 3}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/rerank", {"query": "a" * 900_000, "documents": ["a"] * 2048}, "documents"),
        ("/v1/score", {"text_1": "a" * 900_000, "text_2": ["a"] * 2048}, "text_2"),
        ("/classify", {"input": []}, "input"),
        ("/classify", {"input": [1, -1]}, "input[1]"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_name(post, scorer, path, body, param):
    status, told = await post(path, **body)
    assert (status, told["error"]["param"]) == (400, param)
    assert not [seen for seen in scorer.seen if seen.method in {"Score", "Classify"}]


@pytest.mark.parametrize(
    ("path", "body", "says", "told_as"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "documents[0] is 9 tokens", "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "query is 9 tokens", "query is 9 tokens"),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}, "documents[0] is 9 tokens", "text_2[0]"),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}, "query is 9 tokens", "text_1 is 9 tokens"),
        ("/v1/score", {"text_1": ["a"] * 2, "text_2": ["b"] * 2}, "query is 9 tokens", "text_1["),
        ("/classify", {"input": "a"}, "inputs[0] is 9 tokens", "input[0]"),
    ],
)
async def test_a_workers_refusal_names_the_place_in_the_body(post, scorer, path, body, says, told_as):
    scorer.fail_before = CallError(grpc.StatusCode.INVALID_ARGUMENT, says)
    status, told = await post(path, **body)
    assert status == 400
    assert told["error"]["message"].startswith(told_as)


async def test_a_part_whose_worker_goes_is_asked_of_another(house):
    going = FakeWorker(name="one", fail_before=CallError(grpc.StatusCode.UNAVAILABLE, "going"))
    workers = [going, FakeWorker(name="two")]
    for worker in workers:
        await worker.start()
    await house.add("tiny", workers)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{house.ports.openai}") as session:
        body = {"model": "tiny", "query": "a", "documents": ["b" * (n + 1) for n in range(40)]}
        async with session.post("/v1/rerank", json=body) as answer:
            assert [one["index"] for one in (await answer.json())["results"]] == list(range(39, -1, -1))
    for worker in workers:
        await worker.stop()
