"""Classify and Score as a caller sees them: numbers in order, pairs, cuts, limits, and models of other tasks."""

import json

import grpc
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.task_messages import AddPooling
from dormouse_worker.front.calls import scoring
from dormouse_worker.front.calls.scoring import check_repeated
from dormouse_worker.front.testing import write_model
from dormouse_worker.testing.fake_engine import MODEL_LEN, Script

Code = grpc.StatusCode
LABELS = ("bad", "good")
CLASSIFIES = Script(model=ModelInfo(1234, "float32", task="classify", labels=LABELS))
SCORES = Script(model=ModelInfo(1234, "float32", task="score", labels=("fits",)))
BEGIN, BETWEEN = 1, 2  # tokens of the pairs below


def write_classifier(path, *labels):
    """Write a directory whose files say that the model has a head; its tokenizer joins pairs as BERT's do."""
    write_model(path)
    named = {"architectures": ["BertForSequenceClassification"], "id2label": dict(enumerate(labels))}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **named}))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokens = [(tokenizer.id_to_token(token_id), token_id) for token_id in (BEGIN, BETWEEN)]
    begin, between = (token for token, _ in tokens)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A {between}", pair=f"{begin} $A {between} $B:1 {between}:1", special_tokens=tokens
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def classifier_path(tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp("classifier"), *LABELS)


@pytest.fixture(scope="module")
def scorer_path(tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp("scorer"), "fits")


@pytest.fixture
async def classifier(open_house, classifier_path):
    """A front in READY whose engine classifies."""
    async with open_house(CLASSIFIES, path=classifier_path) as house:
        yield house


@pytest.fixture
async def scorer(open_house, scorer_path):
    """A front in READY whose engine scores."""
    async with open_house(SCORES, path=scorer_path) as house:
        yield house


def classify(house, *texts, **fields):
    inputs = [pb.EmbedInput(text=text) for text in texts]
    return house.inference.Classify(pb.ClassifyRequest(inputs=inputs, **fields), timeout=90)


def score(house, query, *documents, **fields):
    return house.inference.Score(pb.ScoreRequest(query=query, documents=documents, **fields), timeout=90)


def sent(house):
    return house.engine.engine.received[-1]


async def test_every_text_gets_its_numbers_and_the_labels_are_told(classifier):
    answer = await classify(classifier, "ab", "c", request_id="mine", priority=3, use_activation=False)
    assert [one.probs[0] for one in answer.classifications] == [4.0, 3.0]
    assert (list(answer.labels), answer.usage.prompt_tokens, answer.request_id) == (list(LABELS), 7, "mine")
    assert (sent(classifier).priority, sent(classifier).params.use_activation) == (3, False)
    assert list((await classifier.inference.GetModel(pb.GetModelRequest(), timeout=90)).labels) == list(LABELS)
    await classify(classifier, "ab")
    assert sent(classifier).params.use_activation is True


async def test_a_query_is_joined_with_each_document_as_the_tokenizer_joins_pairs(scorer):
    asked = pb.TokenizeRequest(text="abcd", add_special_tokens=False)
    a, b, c, d = (await scorer.inference.Tokenize(asked, timeout=90)).token_ids
    answer = await score(scorer, "ab", "cd", "c")
    assert sent(scorer).inputs == [[BEGIN, a, b, BETWEEN, c, d, BETWEEN], [BEGIN, a, b, BETWEEN, c, BETWEEN]]
    assert sent(scorer).second_starts == [4, 4]
    assert (list(answer.scores), answer.usage.prompt_tokens) == ([7.0, 6.0], 13)


async def test_the_end_of_documents_is_cut_as_asked_and_the_query_never(scorer):
    await score(scorer, "ab", "x" * 100_000, "y", truncate_prompt_tokens=10)
    assert [len(text) for text in sent(scorer).inputs] == [10, 6]
    await score(scorer, "ab", "x" * 1000, truncate_prompt_tokens=-1)
    assert [len(text) for text in sent(scorer).inputs] == [MODEL_LEN]
    await score(scorer, "ab", "xyz", max_tokens_per_doc=2)
    assert [len(text) for text in sent(scorer).inputs] == [7]
    assert sent(scorer).inputs[0][-1] == BETWEEN
    await score(scorer, "ab", "xyz", max_tokens_per_doc=9, truncate_prompt_tokens=6)
    assert [len(text) for text in sent(scorer).inputs] == [6]


@pytest.mark.parametrize(
    ("query", "documents", "fields", "words"),
    [
        ("", ["a"], {}, ["query is empty", "at least 1 character"]),
        ("a", [], {}, ["documents is 0 texts", "1 to 2048"]),
        ("a", ["a"] * 2049, {}, ["documents is 2049 texts", "1 to 2048"]),
        ("a", ["b", ""], {}, ["documents[1] is empty"]),
        ("a", ["b", "c" * 100], {}, ["documents[1] is 104 tokens with the query", "model length 64"]),
        ("a", ["b", "c" * 900_000], {}, ["documents[1] is at least", "allowed: at most"]),
        ("a", ["c" * 900_000], {"max_tokens_per_doc": 900_000}, ["documents[0] is at least", "allowed: at most"]),
        ("a" * 61, ["b"], {}, ["query is 61 tokens", "at most 60, so that 1 token of a document fits"]),
        ("a" * 9, ["b"], {"truncate_prompt_tokens": 12}, ["query is 9 tokens", "at most 8"]),
        ("a" * 900_000, ["b"], {}, ["query is at least"]),
        ("a", ["b"], {"truncate_prompt_tokens": 0}, ["truncate_prompt_tokens is 0", "-1, or at least 1"]),
        ("a", ["b"], {"priority": 101}, ["priority is 101", "from -100 to 100"]),
        ("a", ["b"], {"request_id": "x" * 129}, ["request_id"]),
    ],
)
async def test_what_is_wrong_is_refused_by_field_value_and_limit(scorer, query, documents, fields, words):
    error = await scorer.refusal(score(scorer, query, *documents, **fields))
    assert error.code() is Code.INVALID_ARGUMENT
    assert all(word in error.details() for word in words), error.details()
    assert not any(isinstance(message, AddPooling) for message in scorer.engine.engine.received)


def test_a_long_query_is_repeated_for_so_many_documents_only():
    """Or 20 KB of a message would be 17 million tokens in the memory of two processes."""
    check_repeated(512, 2048)
    check_repeated(8190, 128)
    check_repeated(0, 2048)
    with pytest.raises(
        CallError, match=r"documents is 2048 texts beside a query of 8190 tokens; allowed: at most 128 "
    ):
        check_repeated(8190, 2048)


async def test_how_often_a_query_is_repeated_is_checked_before_a_pair_is_made(scorer, monkeypatch):
    monkeypatch.setattr(scoring, "MAX_QUERY_TOKENS", 10)
    error = await scorer.refusal(score(scorer, "abcd", "a", "b", "c"))
    assert "documents is 3 texts beside a query of 4 tokens; allowed: at most 2 beside it" in error.details()
    await score(scorer, "abcd", "a", "b")


@pytest.mark.parametrize(
    ("texts", "words"), [([], "inputs is 0 texts"), (["a", ""], "inputs[1] is empty"), (["a" * 99], "101 tokens")]
)
async def test_texts_of_a_classifier_have_the_limits_of_an_embedders(classifier, texts, words):
    error = await classifier.refusal(classify(classifier, *texts))
    assert error.code() is Code.INVALID_ARGUMENT
    assert words in error.details()


async def test_numbers_of_all_texts_have_to_fit_the_answer(open_house, tmp_path):
    labels = tuple(f"label {n}" for n in range(4000))
    script = Script(model=ModelInfo(1, "float32", task="classify", labels=labels))
    async with open_house(script, path=write_classifier(tmp_path, *labels)) as house:
        error = await house.refusal(classify(house, *["a"] * 100))
        assert "inputs is 100 texts; allowed: at most" in error.details()
        assert "with 4000 labels" in error.details()
        await classify(house, *["a"] * 50)


async def test_each_task_names_the_call_that_it_answers(classifier, scorer, house):
    for at, call, words in (
        (classifier, score(classifier, "a", "b"), "task is classify, which Score does not do; call Classify"),
        (scorer, classify(scorer, "a"), "task is score, which Classify does not do; call Score (/v1/rerank"),
        (house, score(house, "a", "b"), "task is generate, which Score does not do; call Generate"),
    ):
        error = await at.refusal(call)
        assert error.code() is Code.FAILED_PRECONDITION
        assert words in error.details()
