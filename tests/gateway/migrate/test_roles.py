"""Prompts that one worker computes and another one goes on with: who is asked for what, and what the client sees."""

import pytest

from dormouse_api.names import DECODE, PREFILL
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.migrate.history import ByteBudget, History
from dormouse_gateway.model import parse_deployment
from dormouse_gateway.routing.policy import Demand
from dormouse_gateway.routing.roles import REMOTE_DECODE, role_of
from dormouse_gateway.testing.workers import NAMESPACE, infd, set_ready
from dormouse_kube.api import PODS
from tests.gateway.kit import ask
from tests.gateway.moving import ALL, ONE, answer_of, check_whole, migrated, narrators

ROLES = {"prefill": {"replicas": 1, "minPromptTokens": 1}}


async def settle(house, workers, *roles, **spec):
    """Have one worker of each role known."""
    await house.add("tiny", workers, **{"roles": ROLES, **spec})
    for worker, role in zip(workers, roles, strict=True):
        name = f"tiny-{worker.name}"
        house.kube.edit(PODS, NAMESPACE, name, lambda obj, role=role: obj["metadata"]["labels"].update(role=role))
    (found,) = house.gateway.router.catalogue.deployments()
    pool = house.gateway.router.pool
    await house.until(lambda: sorted(one.role for one in pool.endpoints_of(found.key)) == sorted(roles))


def asked(worker):
    """Return how often it was asked, and for a prompt alone."""
    requests = [seen.request for seen in worker.seen if seen.method == "Generate"]
    return len(requests), sum(request.remote_decode for request in requests)


async def test_one_worker_computes_the_prompt_and_another_one_says_the_rest(house):
    async with narrators(2) as (first, second):
        await settle(house, (first, second), PREFILL, DECODE)
        for number in range(1, 4):
            call = ask(house, sampling_params=ONE)
            answer = await answer_of(call)
            check_whole(answer, 1)
            assert not answer.choices[0].migrated
            assert (asked(first), asked(second)) == ((number, number), (number, 0))
    (resume, *_) = [request.resume for request in second.resumed]
    assert (len(resume.output_token_ids), resume.kv_source.address) == (1, first.address)
    assert (migrated(house, "handed_over"), migrated(house, "done")) == (3, 0)
    assert house.gateway.migrator.room.used_bytes == house.outstanding() == 0


async def test_what_is_said_of_the_prompt_is_said_by_the_worker_that_computed_it(house):
    async with narrators(2) as workers:
        await settle(house, workers, PREFILL, DECODE)
        messages = [message async for message in ask(house, sampling_params=ONE)]
    last = messages[-1]
    assert (last.usage.cached_tokens, last.usage.completion_tokens) == (3, 6)
    assert (last.timings.queue_seconds, last.timings.prefill_seconds) == (0.25, 0.5)
    assert "lost" not in "".join(message.text for message in messages)


@pytest.mark.parametrize("gone", [PREFILL, DECODE])
async def test_where_a_role_has_no_ready_worker_the_others_answer_whole(house, gone):
    async with narrators(2) as workers:
        await settle(house, workers, PREFILL, DECODE)
        lost = workers[gone == DECODE]
        lost.tell_load(ready=False)
        set_ready(house.kube, f"tiny-{lost.name}", ready=False)
        (found,) = house.gateway.router.catalogue.deployments()
        await house.until(lambda: house.gateway.router.pool.num_ready(found.key) == 1)
        answer = await answer_of(ask(house, sampling_params=ONE))
        check_whole(answer, 1)
        assert asked(lost) == (0, 0)
        assert asked(workers[gone == PREFILL]) == (1, 0)


@pytest.mark.parametrize(("params", "least"), [(ALL, 1), (ONE, 1000)])
async def test_other_requests_are_decodings_alone(house, params, least):
    async with narrators(2) as workers:
        roles = {"prefill": {"replicas": 1, "minPromptTokens": least}}
        await settle(house, workers, PREFILL, DECODE, roles=roles)
        for _ in range(3):
            check_whole(await answer_of(ask(house, sampling_params=params)), params.n or 1)
        assert (asked(workers[0]), asked(workers[1])) == ((0, 0), (3, 0))


@pytest.mark.parametrize("death", ["reset", "abort"])
@pytest.mark.parametrize("dies_after", range(5))
async def test_a_worker_for_prompts_that_dies_costs_no_token(house, death, dies_after):
    async with narrators(3) as workers:
        workers[0].dies_after, workers[0].death = dies_after, death
        await settle(house, workers, PREFILL, DECODE, DECODE)
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
    assert house.outstanding() == 0


@pytest.mark.parametrize("death", ["reset", "abort"])
@pytest.mark.parametrize("dies_after", range(6))
async def test_a_worker_that_decodes_and_dies_costs_no_token_and_is_told_as_a_move(house, death, dies_after):
    async with narrators(3) as workers:
        for worker in workers[1:]:
            worker.dies_after, worker.death = dies_after, death
        workers[2].lives = 0
        await settle(house, workers, PREFILL, DECODE, DECODE)
        answers = [await answer_of(ask(house, sampling_params=ONE)) for _ in range(2)]
    for answer in answers:
        check_whole(answer, 1)
    assert sum(answer.choices[0].migrated for answer in answers) == (dies_after < 5)


async def test_a_gateway_that_can_prove_no_role_has_it_answered_whole(house):
    house.gateway._proxy._has_role = False
    async with narrators(2) as workers:
        await settle(house, workers, PREFILL, DECODE)
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
        assert (asked(workers[0]), asked(workers[1])) == ((0, 0), (1, 0))


async def test_without_moves_it_is_handed_over_all_the_same(make_house):
    async with make_house(max_moves=0) as house, narrators(2) as workers:
        await settle(house, workers, PREFILL, DECODE)
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
        assert asked(workers[1]) == (1, 0)


async def test_without_room_for_what_was_said_it_is_answered_whole(make_house):
    async with make_house(migrate_total_bytes=1) as house, narrators(2) as workers:
        await settle(house, workers, PREFILL, DECODE)
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
        assert (asked(workers[0]), asked(workers[1])) == ((0, 0), (1, 0))


IMAGE = pb.ChatMessage(parts=[pb.ContentPart(image=b"x")])
LONG = Demand(prompt_tokens=600)


@pytest.mark.parametrize(
    ("request_", "demand", "expected"),
    [
        (pb.GenerateRequest(), LONG, PREFILL),
        (pb.GenerateRequest(), Demand(prompt_tokens=511), DECODE),
        (pb.GenerateRequest(sampling_params=pb.SamplingParams(n=2)), LONG, DECODE),
        (pb.GenerateRequest(sampling_params=pb.SamplingParams(max_tokens=1)), LONG, DECODE),
        (pb.GenerateRequest(sampling_params=pb.SamplingParams(prompt_logprobs=0)), LONG, DECODE),
        (pb.GenerateRequest(chat=pb.Chat(messages=[IMAGE])), LONG, DECODE),
        (pb.DecideRequest(), LONG, DECODE),
    ],
)
def test_which_requests_are_split(request_, demand, expected):
    assert role_of(request_, demand, least_tokens=512, can_hand_over=True) == expected
    assert role_of(request_, demand, least_tokens=512, can_hand_over=False) == DECODE


def test_the_field_is_set_behind_a_message():
    body = pb.GenerateRequest(text="a", prediction="b").SerializeToString() + REMOTE_DECODE
    told = pb.GenerateRequest.FromString(body)
    assert (told.text, told.prediction, told.remote_decode) == ("a", "b", True)


def test_roles_stand_in_the_status_and_their_limit_in_the_spec():
    raw = infd("tiny", roles=ROLES)
    raw["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    raw["status"] = {"pods": [{"name": "a", "uid": "1", "role": PREFILL}, {"name": "b", "uid": "2"}]}
    parsed = parse_deployment(raw)
    assert (parsed.roles, parsed.min_prefill_tokens) == ({"1": PREFILL}, 1)


def test_reserved_room_is_there_for_messages_and_given_back():
    room = ByteBudget(total_bytes=1000, stream_bytes=900)
    with History(room) as history:
        assert history.reserve(500)
        assert not History(room).reserve(501)
        assert not History(room).reserve(901)
        room.take(500)
        history.add(b"x" * 400)
        assert (room.used_bytes, history.is_cut) == (1000, False)
        history.add(b"x" * 100)
        assert history.is_cut
    assert room.used_bytes == 500
