"""/v1/decisions with OpenAI's client, and /v1/systemone: questions, answers, refusals, what reaches the worker."""

import aiohttp
import grpc
import openai
import pytest

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.decisions.asking import to_decide
from dormouse_gateway.testing.workers import FakeWorker

PREDICATE = {"type": "predicate", "instructions": "Is it spam?", "name": "spam"}
CHOICE = {
    "type": "choice",
    "instructions": "Which?",
    "choices": [{"value": "true", "description": "as text"}, {"value": True}, {"value": "other"}],
}
SCORE = {"type": "score", "instructions": "How urgent?", "levels": [{"label": "not"}, {"label": "very"}]}


@pytest.fixture
async def decider(house):
    """A worker of the model tiny, which finds each option half as likely as the one before."""
    worker = FakeWorker(name="one")
    await worker.start()
    await house.add("tiny", [worker])
    yield worker
    await worker.stop()


@pytest.fixture
async def client(house, decider, open_client):
    assert decider.port
    return open_client(house)


@pytest.fixture
async def post(house, decider):
    """Return a function that posts a body of the model tiny; returns status and answer."""
    assert decider.port
    async with aiohttp.ClientSession(f"http://127.0.0.1:{house.ports.openai}") as session:

        async def send(path, **body):
            async with session.post(path, json={"model": "tiny", **body}) as answer:
                return answer.status, await answer.json()

        yield send


async def test_openais_client_gets_an_answer_to_each_question_in_order(client):
    loud = {**PREDICATE, "instructions": "LOUD"}
    told = await client.decisions.create(model="tiny", input="state", questions=[PREDICATE, CHOICE, SCORE, loud])
    spam, which, urgent, refused = told.answers
    assert (spam.type, spam.name, spam.probability) == ("predicate", "spam", pytest.approx(2 / 3))
    assert (which.type, which.name, which.choice) == ("choice", None, "true")
    assert [(one.value, one.probability) for one in which.probabilities] == [
        ("true", pytest.approx(4 / 7)),
        (True, pytest.approx(2 / 7)),
        ("other", pytest.approx(1 / 7)),
    ]
    assert which.confidence == pytest.approx(4 / 7 * 0.5)
    assert (urgent.score, urgent.confidence) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert [(one.value, one.label) for one in urgent.probabilities] == [(0, "not"), (1, "very")]
    assert (refused.type, refused.name) == ("refusal", "spam")
    assert (told.model, told.usage.input_tokens, told.usage.total_tokens) == ("tiny", 40, 40)
    assert (told.usage.input_tokens_details.cached_tokens, told.usage.output_tokens) == (24, 0)


async def test_what_is_asked_reaches_the_worker_in_one_call(client, decider):
    parts = [{"type": "input_text", "text": "Is"}, {"type": "input_json", "data": {"a": 1}}]
    await client.decisions.create(
        model="tiny",
        input="state",
        questions=[{**PREDICATE, "instructions": parts}, CHOICE, SCORE],
        prompt_cache_key="k",
        safety_identifier="who",
        prompt_cache_options={"ttl": "30m"},
        extra_body={"priority": 3, "min_label_mass": 0.25},
    )
    (seen,) = [seen.request for seen in decider.seen if seen.method == "Decide"]
    assert (seen.text, seen.prompt_cache_key, seen.priority, seen.min_label_mass) == ("state", "k", 3, 0.25)
    assert seen.questions[0].instructions == 'Is\n{"a": 1}'
    assert seen.questions[0].WhichOneof("kind") == "predicate"
    assert [(one.name, one.description) for one in seen.questions[1].choice.options] == [
        ("true", "as text"),
        ("true", ""),
        ("other", ""),
    ]
    assert [one.name for one in seen.questions[2].score.levels] == ["not", "very"]


def test_conversations_are_turns_calls_and_what_came_of_them():
    items = [
        {"role": "developer", "content": "Be strict."},
        {"role": "user", "content": [{"type": "input_text", "text": "Pay?"}]},
        {"type": "function_call", "call_id": "1", "name": "pay", "arguments": '{"sum": 2}'},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "custom_tool_call", "call_id": "2", "name": "sh", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "a b"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]
    asked = to_decide(
        {"model": "m", "input": items, "questions": [PREDICATE], "chat_template_kwargs": {"style": "short"}}
    )
    turns = [(turn.role, turn.content) for turn in asked.chat.messages]
    assert turns == [
        ("system", "Be strict."),
        ("user", "Pay?"),
        ("assistant", ""),
        ("tool", "done"),
        ("assistant", ""),
        ("tool", "a b"),
        ("assistant", "No."),
    ]
    assert asked.chat.messages[4].tool_calls[0]["function"]["arguments"]["input"] == "ls"
    assert asked.chat.template_args["style"] == "short"


BAD = {
    "no questions": ({"questions": []}, "questions"),
    "401 questions": ({"questions": [PREDICATE] * 401}, "questions"),
    "one choice": ({"questions": [{**CHOICE, "choices": CHOICE["choices"][:1]}]}, "questions[0].choices"),
    "256 choices": ({"questions": [{**CHOICE, "choices": [{"value": str(n)} for n in range(256)]}]}, "choices"),
    "a choice twice": ({"questions": [{**CHOICE, "choices": [{"value": "a"}] * 2}]}, "questions[0].choices"),
    "eleven levels": ({"questions": [{**SCORE, "levels": [{"label": "l"}] * 11}]}, "questions[0].levels"),
    "no kind": ({"questions": [{"instructions": "a"}]}, "questions[0].type"),
    "another kind": ({"questions": [{"type": "essay", "instructions": "a"}]}, "questions[0].type"),
    "an image": ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
    "an output of no call": (
        {"input": [{"type": "function_call_output", "call_id": "1", "output": "a"}]},
        "input[0].call_id",
    ),
    "an empty input": ({"input": ""}, "input"),
    "unknown": ({"temperature": 0}, "temperature"),
    "mass": ({"min_label_mass": 1.5}, "min_label_mass"),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_wrong_is_refused_by_its_name(client, decider, name):
    changed, field = BAD[name]
    body = {"model": "tiny", "input": "state", "questions": [PREDICATE], **changed}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.post("/decisions", cast_to=object, body=body)
    assert field in caught.value.body["param"]
    assert not decider.seen


async def test_a_workers_refusal_is_told_under_the_clients_name(client, decider):
    decider.fail_before = CallError(grpc.StatusCode.INVALID_ARGUMENT, "text is 9 tokens; allowed: below 8")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.decisions.create(model="tiny", input="state", questions=[PREDICATE])
    assert caught.value.body["param"] == "input"


async def test_another_worker_answers_where_one_gives_up(house, decider, open_client):
    other = FakeWorker(name="two")
    await other.start()
    decider.fail_before = CallError(grpc.StatusCode.UNAVAILABLE, "the worker gave the call up; ask another", 1.0)
    await house.add("pair", [decider, other])
    asking = open_client(house)
    for _ in range(2):  # whichever is asked first
        told = await asking.decisions.create(model="pair", input="state", questions=[PREDICATE] * 2)
        assert len(told.answers) == 2
    assert [seen.method for seen in other.seen].count("Decide") == 2
    await other.stop()


QUESTIONS = {
    "spam": {"type": "noul", "instructions": "Is it?", "criteria": {"true": "it is"}},
    "which": {"type": "choice", "criteria": {"billing": "money", "other": None}},
    "urgent": {"type": "score", "criteria": ["not", "rather", "very"]},
}


async def test_vllms_bodies_are_answered_by_their_ids(post, decider):
    status, told = await post("/v1/systemone", state={"a": [1]}, questions=QUESTIONS, instructions="Be strict.")
    assert status == 200, told
    assert told["answers"]["spam"] == {
        "type": "noul",
        "noul": pytest.approx(2 / 3),
        "probabilities": {"yes": pytest.approx(2 / 3), "no": pytest.approx(1 / 3)},
        "confidence": pytest.approx(1 / 3),
    }
    assert (told["answers"]["which"]["choice"], told["answers"]["urgent"]["legend"]["2"]) == ("billing", "very")
    assert told["answers"]["urgent"]["score"] == pytest.approx((2 + 2 * 1) / 7)
    assert told["diagnostics"]["spam"] == {"label_mass": 0.5, "argmax_is_label": True}
    assert (told["object"], told["usage"]) == ("structured_decision", {"input_tokens": 30, "output_tokens": 0})
    seen = decider.seen[-1].request
    assert [(turn.role, turn.content) for turn in seen.chat.messages] == [
        ("system", "Be strict."),
        ("user", '{"a": [1]}'),
    ]
    assert seen.questions[0].predicate == pb.DecideQuestion.Predicate(if_true="it is")
    _, told = await post("/v1/systemone", state="text", questions=QUESTIONS)
    assert decider.seen[-1].request.text == "text"


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"questions": {}}, "questions"),
        ({"questions": {"a": {"type": "noul", "criteria": {"maybe": "x"}}}}, "questions.a.criteria.maybe"),
        ({"questions": {"a": {"type": "choice"}}}, "questions.a.criteria"),
        ({"questions": {"a": {"type": "score", "criteria": {"x": None}}}}, "questions.a.criteria"),
        ({"questions": {"a": {"type": "noul", "instructions": "LOUD"}}}, "questions.a"),
        ({"joint": True}, "joint"),
        ({"images": ["x"]}, "images"),
        ({"cache_salt": "x"}, "cache_salt"),
    ],
)
async def test_what_is_wrong_with_vllms_bodies_is_refused_by_its_name(post, changed, param):
    status, told = await post("/v1/systemone", **{"state": "a", "questions": QUESTIONS, **changed})
    assert (status, told["error"]["param"]) == (400, param)
