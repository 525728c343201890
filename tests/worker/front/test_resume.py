"""A request that another worker began: who may say so, what is checked, and that nothing is sent twice."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode
EOS = 257
A, B, C = 64, 65, 66  # tokens of letters in the tests' vocabulary


def resumed(tokens, emitted=0, choice=0):
    return pb.Resume(choice_index=choice, output_token_ids=tokens, emitted_utf8_bytes=emitted)


def from_peer(**source):
    return pb.Resume(output_token_ids=[A], kv_source=pb.KvSource(**{"address": "10.0.0.1:50051", **source}))


async def go_on(house, tokens, emitted=0, *, choice=0, **fields):
    """Return all messages of a resumed request, as the gateway gets them."""
    ask = {"seed": 3, "max_tokens": 5, **fields}
    return await house.collect("hi", metadata=proof(Role.GATEWAY), resume=resumed(tokens, emitted, choice), **ask)


async def test_tokens_of_the_first_worker_count_and_only_the_rest_is_sent(open_house):
    async with open_house(Script(tokens=(A, B, C))) as house:
        messages = await go_on(house, [A, B], emitted=1)
        assert "".join(m.text for m in messages) == "bcab"
        assert [t for m in messages for t in m.token_ids] == [C, A, B]
        assert messages[-1].completion_tokens == messages[-1].usage.completion_tokens == 5
        assert messages[0].completion_tokens == 2
        assert (messages[0].seed, messages[-1].finish_reason) == (3, pb.FINISH_REASON_LENGTH)
        added = house.engine.engine.received[-1]
        assert (added.output_token_ids, added.sampling.max_tokens) == ([A, B], 5)


async def test_the_whole_answer_is_the_same_wherever_it_is_cut(open_house):
    async with open_house() as house:
        tokens = list((await house.tokenize("a✓b")).token_ids)
        house.engine.engine.script = Script(tokens=(*tokens, *tokens))
        whole = await house.collect("hi", max_tokens=9, stop=["ba✓b!"])
        text, ids = "".join(m.text for m in whole), [t for m in whole for t in m.token_ids]
        assert text == "a✓ba✓"
        for cut in range(1, len(ids)):
            first = await house.collect("hi", max_tokens=cut, stop=["ba✓b!"])
            had = "".join(m.text for m in first)  # with what was held back until its end, too
            had = had.removesuffix("\ufffd")  # said only because the first one ends for good within a character
            for known in ("", had):
                rest = await go_on(house, ids[:cut], len(known.encode()), max_tokens=9, stop=["ba✓b!"])
                assert known + "".join(m.text for m in rest) == text
                assert ids[:cut] + [t for m in rest for t in m.token_ids] == ids


async def test_a_choice_is_resumed_alone_under_its_own_index(open_house):
    async with open_house(Script(tokens=(A, B, C))) as house:
        messages = await go_on(house, [B], emitted=1, choice=1, prompt_logprobs=1)
        assert "".join(m.text for m in messages) == "cabc"
        assert {m.choice_index for m in messages} == {1}
        sampling = house.engine.engine.received[-1].sampling
        assert (sampling.choice_index, sampling.seed, sampling.prompt_logprobs) == (1, 3, None)


async def test_the_engine_is_told_where_the_streams_blocks_may_be(house):
    await house.collect("hi", metadata=proof(Role.GATEWAY), resume=from_peer(tickets=["one", "two"]), seed=1)
    assert house.engine.engine.received[-1].kv_source == KvSource("10.0.0.1:50051", ("one", "two"))
    await go_on(house, [A])
    assert house.engine.engine.received[-1].kv_source is None


@pytest.mark.parametrize(("tokens", "asked"), [([], 4), ([A], None)])
async def test_prompt_logprobs_are_not_asked_for_twice(house, tokens, asked):
    await go_on(house, tokens, prompt_logprobs=4)
    assert house.engine.engine.received[-1].sampling.prompt_logprobs == asked


@pytest.mark.parametrize(
    ("tokens", "fields", "text", "reason", "stop"),
    [
        ([A, EOS], {}, "a", pb.FINISH_REASON_STOP, ""),
        ([A, B, C], {"stop": ["bc"]}, "a", pb.FINISH_REASON_STOP, "bc"),
        ([A, B, C], {"stop": ["bc"], "include_stop_str_in_output": True}, "abc", pb.FINISH_REASON_STOP, "bc"),
        ([A, B, C], {"max_tokens": 3}, "abc", pb.FINISH_REASON_LENGTH, ""),
        ([A, B, C], {"max_tokens": 3, "stop": ["bcd"]}, "abc", pb.FINISH_REASON_LENGTH, ""),
        ([A, B, C], {"max_tokens": 3, "stop": ["bc"]}, "a", pb.FINISH_REASON_STOP, "bc"),
    ],
)
async def test_what_had_ended_already_ends_at_once_without_the_engine(house, tokens, fields, text, reason, stop):
    (last,) = await go_on(house, tokens, **fields)
    assert (last.text, last.finish_reason, last.matched_stop, list(last.token_ids)) == (text, reason, stop, [])
    assert (last.completion_tokens, last.usage.completion_tokens, last.usage.prompt_tokens) == (len(tokens),) * 2 + (2,)
    assert last.request_id
    assert not any(isinstance(m, AddRequest) for m in house.engine.engine.received)


async def test_no_seed_is_needed_where_nothing_is_drawn(house):
    ask = house.generate("hi", metadata=proof(Role.GATEWAY), resume=resumed([A]), temperature=0, max_tokens=2)
    assert [t async for m in ask for t in m.token_ids]


BAD = {
    "from a client": ({"metadata": None}, ["resume", "gateway"]),
    "choice index": ({"resume": resumed([A], choice=16)}, ["resume.choice_index", "16"]),
    "several choices": ({"n": 2}, ["sampling_params.n", "2", "1"]),
    "a long address": (
        {"resume": from_peer(address="a" * 257)},
        ["resume.kv_source.address", "257 characters", "256"],
    ),
    "an odd address": ({"resume": from_peer(address="a\n")}, ["resume.kv_source.address", "printable"]),
    "many tickets": ({"resume": from_peer(tickets=["t"] * 5)}, ["resume.kv_source.tickets", "5 tickets", "4"]),
    "a long ticket": ({"resume": from_peer(tickets=["t", "t" * 513])}, ["resume.kv_source.tickets[1]", "513", "512"]),
    "a token outside": ({"resume": resumed([A, 260])}, ["resume.output_token_ids[1]", "260"]),
    "too many tokens": ({"resume": resumed([A] * 5)}, ["resume.output_token_ids", "5 tokens", "4"]),
    "no room": ({"resume": resumed([A] * 63), "max_tokens": 62}, ["resume.output_token_ids", "63 tokens", "62"]),
    "no seed": ({"seed": None}, ["sampling_params.seed", "missing"]),
    "too many bytes": ({"resume": resumed([A], emitted=2)}, ["resume.emitted_utf8_bytes", "2", "at most 1"]),
    "all bytes": ({"resume": resumed([A], emitted=2**64 - 1)}, ["resume.emitted_utf8_bytes", "at most 1"]),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_resume_that_can_not_be_is_refused(house, case):
    changes, named = BAD[case]
    ask = {"prompt": "hi", "metadata": proof(Role.GATEWAY), "resume": resumed([A]), "seed": 1, **changes}
    refused = await house.refusal(house.generate(**ask).read())
    assert refused.code() is Code.INVALID_ARGUMENT, refused.details()
    assert [word for word in named if word not in refused.details()] == [], refused.details()
    assert not house.engine.engine.has_work
