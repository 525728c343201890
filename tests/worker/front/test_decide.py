"""Decide as a caller sees it: one message to the engine, answers in order, refusals of one question, and limits."""

import asyncio
import json
import math

import grpc
import pytest

from dormouse_api.names import METADATA_CACHE_SALT, Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import State
from dormouse_worker.common.task_messages import AddDecision
from dormouse_worker.front.decisions import prompts
from dormouse_worker.front.testing import write_model
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode
PREDICATE = pb.DecideQuestion(instructions="a", predicate=pb.DecideQuestion.Predicate())
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '>' if add_generation_prompt }}"


def choice(*names, **fields):
    made = [pb.DecideOption(name=name) for name in names]
    return pb.DecideQuestion(choice=pb.DecideQuestion.Choice(options=made), **fields)


def decide(house, *questions, text="s", metadata=None, **fields):
    state = {} if "chat" in fields else {"text": text}
    request = pb.DecideRequest(questions=questions, **state, **fields)
    return house.inference.Decide(request, timeout=60, metadata=metadata)


def sent(house):
    return [message for message in house.engine.engine.received if isinstance(message, AddDecision)]


LETTERS = choice("x", "y")  # labels of one token each, in these tests' vocabulary


@pytest.fixture(scope="module")
def plain_path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("plain"), template=PLAIN)


@pytest.fixture
async def long_house(open_house, plain_path):
    """A front whose model takes long prompts."""
    async with open_house(Script(max_model_len=4096), path=plain_path) as house:
        yield house


async def test_the_state_reaches_the_engine_once_and_each_question_behind_it(long_house):
    first, second = PREDICATE, choice("x", "y")
    answer = await decide(long_house, first, second, text="state", priority=7, request_id="mine")
    (message,) = sent(long_house)
    tokenized = await long_house.tokenize("state\n\n")
    assert message.prompt_token_ids == list(tokenized.token_ids)
    asked = await long_house.tokenize("Question: a\nyes\nno\nAnswer with yes or no only.>")
    assert message.branches[0] == list(asked.token_ids)
    assert (message.priority, answer.request_id, len(answer.answers)) == (7, "mine", 2)
    letters = await long_house.tokenize("AB")
    assert message.logprob_token_ids[-1] == list(letters.token_ids)


async def test_probabilities_are_those_of_the_labels_and_the_rest_is_told(long_house):
    answer = await decide(long_house, choice("x", "y", "z"), text="state")
    (message,) = sent(long_house)
    logprobs = [-token_id / 64 for token_id in message.logprob_token_ids[0]]  # as the fake engine says
    weights = [math.exp(logprob) for logprob in logprobs]
    (one,) = answer.answers
    assert list(one.probabilities) == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-6)
    assert one.label_mass == pytest.approx(min(1, sum(weights)), abs=1e-6)
    assert one.argmax_is_label is False
    assert answer.usage.prompt_tokens == len(message.prompt_token_ids) + len(message.branches[0])
    assert (answer.timings.queue_seconds, answer.timings.prefill_seconds) == (0.25, 0.5)


async def test_labels_of_several_tokens_are_asked_about_one_after_the_other(long_house):
    made = [pb.DecideOption(name="n", label=label) for label in ("ab", "ac", "d")]
    await decide(long_house, pb.DecideQuestion(choice=pb.DecideQuestion.Choice(options=made)))
    (message,) = sent(long_house)
    a, b, c, d = (await long_house.tokenize("abcd")).token_ids
    assert message.logprob_token_ids == [[a, d], [b, c]]
    assert message.branches[1] == [*message.branches[0], a]


async def test_one_question_is_refused_and_the_others_are_answered(long_house):
    made = [pb.DecideOption(name="n", label=label) for label in ("a", "ab")]
    alike = pb.DecideQuestion(choice=pb.DecideQuestion.Choice(options=made))
    answer = await decide(long_house, LETTERS, alike, choice("x" * 4096, "y"))
    assert [bool(one.probabilities) for one in answer.answers] == [True, False, False]
    assert "does not tell its labels apart" in answer.answers[1].refusal
    assert "tokens with the state; allowed: below the model length 4096" in answer.answers[2].refusal
    assert len(sent(long_house)[0].branches) == 1
    only = await decide(long_house, alike)
    assert only.answers[0].refusal
    assert len(sent(long_house)) == 1, "nothing is asked of the engine"


async def test_labels_that_the_model_does_not_say_are_refused_where_that_is_asked(long_house):
    rare = pb.DecideQuestion(choice={"options": [pb.DecideOption(name=name, label=name) for name in ("zz", "yy")]})
    told = (await decide(long_house, rare, min_label_mass=0.1)).answers[0]
    assert 0.1 < told.label_mass < 0.5
    answer = await decide(long_house, rare, min_label_mass=0.5)
    assert (answer.answers[0].label_mass, list(answer.answers[0].probabilities)) == (told.label_mass, [])
    assert "says one of its labels with a probability of" in answer.answers[0].refusal


async def test_a_question_stands_in_the_users_last_turn_or_in_one_of_its_own(open_house, model_path):
    async with open_house(Script(max_model_len=4096), path=model_path) as house:
        user, assistant = (pb.ChatMessage(role=role, content=role[0]) for role in ("user", "assistant"))
        for messages, begins in (([user], "<|user|>u\n\n"), ([user, assistant], "<|user|>u<|assistant|>a<|user|>")):
            await decide(house, PREDICATE, chat=pb.Chat(messages=messages))
            asked = pb.TokenizeRequest(text=begins, add_special_tokens=False)
            told = await house.inference.Tokenize(asked, timeout=90)
            assert sent(house)[-1].prompt_token_ids == list(told.token_ids)


async def test_a_model_without_a_template_reads_plain_text_and_answers_behind_a_space(open_house, tmp_path):
    path = write_model(tmp_path / "base")
    config = json.loads((path / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    async with open_house(Script(max_model_len=4096), path=path) as house:
        await decide(house, PREDICATE, text="state")
        (message,) = sent(house)
        asked = await house.tokenize("Question: a\nyes\nno\nAnswer with yes or no only.\nAnswer:")
        assert message.branches[0] == list(asked.token_ids)
        space = (await house.tokenize(" ")).token_ids[0]
        assert message.logprob_token_ids[0] == [space]
        error = await house.refusal(decide(house, PREDICATE, chat=pb.Chat(messages=[pb.ChatMessage(role="user")])))
        assert "the model has no chat template" in error.details()


async def test_cached_tokens_are_told_and_a_key_parts_what_is_cached(open_house, plain_path):
    async with open_house(Script(max_model_len=4096, cached_tokens=3), path=plain_path) as house:
        salted = ((METADATA_CACHE_SALT, "abc"), *proof(Role.GATEWAY))
        answer = await decide(house, PREDICATE, PREDICATE, prompt_cache_key="k", metadata=salted)
        assert answer.usage.cached_tokens == 6
        await decide(house, PREDICATE, metadata=salted)
        assert [message.cache_salt for message in sent(house)] == ["abc\0k", "abc"]


BAD = {
    "no state": (pb.DecideRequest(questions=[PREDICATE]), "state is missing"),
    "empty text": (pb.DecideRequest(text="", questions=[PREDICATE]), "text is empty"),
    "no questions": (pb.DecideRequest(text="a"), "questions is 0 questions; allowed: 1 to 400"),
    "401 questions": (pb.DecideRequest(text="a", questions=[PREDICATE] * 401), "questions is 401 questions"),
    "no kind": (pb.DecideRequest(text="a", questions=[pb.DecideQuestion()]), "questions[0] is without a kind"),
    "one option": (pb.DecideRequest(text="a", questions=[choice("x")]), "questions[0].choice.options is 1 options"),
    "256 options": (pb.DecideRequest(text="a", questions=[choice(*["x"] * 256)]), "256 options; allowed: 2 to 255"),
    "nameless": (pb.DecideRequest(text="a", questions=[choice("x", "")]), "options[1].name is empty"),
    "levels": (
        pb.DecideRequest(text="a", questions=[pb.DecideQuestion(score={"levels": [pb.DecideOption(name="n")] * 11})]),
        "questions[0].score.levels is 11 options; allowed: 2 to 10",
    ),
    "labelled levels": (
        pb.DecideRequest(
            text="a", questions=[pb.DecideQuestion(score={"levels": [pb.DecideOption(name="n", label="l")] * 2})]
        ),
        "score.levels is labelled",
    ),
    "a label missing": (
        pb.DecideRequest(
            text="a",
            questions=[
                pb.DecideQuestion(choice={"options": [pb.DecideOption(name="n", label="l"), pb.DecideOption(name="m")]})
            ],
        ),
        "options[1].label is 0 bytes",
    ),
    "a label twice": (
        pb.DecideRequest(
            text="a", questions=[pb.DecideQuestion(choice={"options": [pb.DecideOption(name="n", label="l")] * 2})]
        ),
        "options is labelled 'l' more than once",
    ),
    "long key": (pb.DecideRequest(text="a", questions=[PREDICATE], prompt_cache_key="k" * 257), "257 bytes"),
    "mass": (pb.DecideRequest(text="a", questions=[PREDICATE], min_label_mass=math.nan), "min_label_mass is nan"),
    "priority": (pb.DecideRequest(text="a", questions=[PREDICATE], priority=101), "priority is 101"),
    "request id": (pb.DecideRequest(text="a", questions=[PREDICATE], request_id="x" * 129), "request_id"),
    "long state": (pb.DecideRequest(text="a" * 64, questions=[PREDICATE]), "text is 66 tokens; allowed: below"),
    "a huge state": (pb.DecideRequest(text="a" * 900_000, questions=[PREDICATE]), "text is at least"),
    "goes on": (
        pb.DecideRequest(
            chat=pb.Chat(messages=[pb.ChatMessage(role="user")], continue_final_message=True), questions=[PREDICATE]
        ),
        "chat.continue_final_message is true",
    ),
    "no turn": (
        pb.DecideRequest(
            chat=pb.Chat(messages=[pb.ChatMessage(role="user")], add_generation_prompt=False), questions=[PREDICATE]
        ),
        "chat.add_generation_prompt is false",
    ),
    "no messages": (pb.DecideRequest(chat=pb.Chat(), questions=[PREDICATE]), "chat.messages is empty"),
}


@pytest.fixture
async def short_house(open_house, plain_path):
    async with open_house(path=plain_path) as house:
        yield house


@pytest.mark.parametrize("name", BAD)
async def test_what_is_wrong_is_refused_by_field_value_and_limit(short_house, name):
    request, words = BAD[name]
    error = await short_house.refusal(short_house.inference.Decide(request, timeout=90))
    assert error.code() is Code.INVALID_ARGUMENT
    assert words in error.details()
    assert not sent(short_house)


async def test_thinking_is_refused(short_house):
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="a")])
    chat.template_args.update({"enable_thinking": True})
    error = await short_house.refusal(decide(short_house, PREDICATE, chat=chat))
    assert "chat.template_args.enable_thinking is not false" in error.details()


async def test_a_template_that_does_not_show_the_question_once_is_refused(open_house, tmp_path):
    twice = "{{ messages[-1].content }}{{ messages[-1].content }}"
    async with open_house(path=write_model(tmp_path / "twice", template=twice)) as house:
        error = await house.refusal(decide(house, PREDICATE))
        assert "chat is rendered with its final message 2 times" in error.details()


async def test_how_often_a_state_is_repeated_is_checked_before_questions_are_tokenized(long_house, monkeypatch):
    monkeypatch.setattr(prompts, "MAX_DECIDE_TOKENS", 300)
    error = await long_house.refusal(decide(long_house, *[LETTERS] * 4, text="a" * 98))
    assert "questions is 4 sequences beside a state of 100 tokens; allowed: at most 3 beside it" in error.details()
    error = await long_house.refusal(decide(long_house, *[LETTERS] * 3, text="a" * 98))
    assert "tokens in all prompts; allowed: at most 300" in error.details()


async def test_more_questions_than_the_queue_takes_are_never_taken(open_house, plain_path):
    async with open_house(Script(max_model_len=4096), path=plain_path, max_waiting_requests=3) as house:
        error = await house.refusal(decide(house, *[LETTERS] * 4))
        assert error.code() is Code.INVALID_ARGUMENT
        assert "questions is 4; allowed: at most 3" in error.details()
        assert len((await decide(house, *[LETTERS] * 3)).answers) == 3
        error = await house.refusal(decide(house, PREDICATE))
        assert "questions is 4; allowed: at most 3" in error.details(), "sequences, for labels of several tokens"


async def test_long_labels_of_many_questions_are_refused_before_their_trees_are_made(open_house, plain_path):
    def labelled(number):
        made = [pb.DecideOption(name="n", label=f"{number} {place} " + "x" * 50) for place in range(4)]
        return pb.DecideQuestion(choice={"options": made})

    async with open_house(Script(max_model_len=4096), path=plain_path, max_waiting_requests=200) as house:
        error = await house.refusal(decide(house, *[labelled(number) for number in range(100)]))
        assert error.code() is Code.INVALID_ARGUMENT
        assert "allowed: at most 200" in error.details()
        told = int(error.details().removeprefix("questions is ").split(";")[0])
        assert told < 500, "of one question's labels beyond the limit, not of all hundred"
        assert not sent(house)


async def test_who_leaves_takes_all_questions_along(long_house):
    long_house.engine.is_paused = True
    call = asyncio.ensure_future(decide(long_house, PREDICATE, PREDICATE))
    await long_house.engine.until_received(lambda message: isinstance(message, AddDecision))
    call.cancel()
    await long_house.front.worker.until_idle()
    long_house.front.worker.requests.check_integrity()


async def test_an_engine_that_dies_ends_the_call_so_that_another_worker_may_answer(long_house):
    long_house.engine.is_paused = True
    call = asyncio.ensure_future(decide(long_house, PREDICATE, PREDICATE))
    await long_house.engine.until_received(lambda message: isinstance(message, AddDecision))
    long_house.engine.die(1)
    error = await long_house.refusal(call)
    assert error.code() is Code.UNAVAILABLE


async def test_a_drained_call_is_given_up_whole(long_house):
    long_house.engine.is_paused = True
    call = asyncio.ensure_future(decide(long_house, PREDICATE, PREDICATE))
    await long_house.engine.until_received(lambda message: isinstance(message, AddDecision))
    await long_house.operate("Sleep", level=1, mode=2)
    error = await long_house.refusal(call)
    assert (error.code(), "ask another" in error.details()) == (Code.UNAVAILABLE, True)
    await long_house.until_state(State.ASLEEP)
