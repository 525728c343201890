"""Workers die in the middle of what they say; a client sees neither a gap nor a repeat, or one status. Real sockets."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
from grpc import aio

from dormouse_api.status import CallError, retry_after_s
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.testing import NAMESPACE, pod
from dormouse_gateway.testing_moves import NUM_PROMPT_LOGPROBS, STORIES, Narrator
from dormouse_kube.api import PODS
from tests.gateway.kit import ask, refusal_of

ONE = pb.SamplingParams(seed=5)
ALL = pb.SamplingParams(n=len(STORIES), seed=5)
NUM_MESSAGES = NUM_PROMPT_LOGPROBS + sum(len(story) for story in STORIES)  # of an answer with all choices
DEATHS = ("reset", "draining", "internal", "abort")


@dataclass
class Told:
    """One choice as the client got it."""

    tokens: list = field(default_factory=list)
    text: str = ""
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list = field(default_factory=list)
    ends: list = field(default_factory=list)  # finish reasons: one
    migrated: bool = False


@dataclass
class Answer:
    """Everything the client got."""

    choices: dict = field(default_factory=dict)
    seeds: list = field(default_factory=list)
    usages: list = field(default_factory=list)

    def take(self, message):
        choice = self.choices.setdefault(message.choice_index, Told())
        choice.tokens += message.token_ids
        choice.text += message.text
        choice.logprobs += [part.sampled.logprob for part in message.logprobs]
        choice.prompt_logprobs += [part.sampled.logprob for part in message.prompt_logprobs]
        choice.ends += [message.finish_reason] if message.finish_reason else []
        choice.migrated = choice.migrated or message.migrated
        self.seeds += [message.seed] if message.HasField("seed") else []
        self.usages += [message.usage.completion_tokens] if message.HasField("usage") else []
        assert not self.usages or all(choice.ends for choice in self.choices.values()), "usage stands in the last"


async def answer_of(call):
    answer = Answer()
    while (message := await call.read()) is not aio.EOF:
        answer.take(message)
    return answer


def check_whole(answer, num_choices):
    """Compare with what a worker says that nothing happens to."""
    assert sorted(answer.choices) == list(range(num_choices))
    for index, told in answer.choices.items():
        story = STORIES[index]
        assert told.tokens == [word.token for word in story]
        assert told.text == "".join(word.text for word in story)
        assert told.logprobs == [-word.token / 8 for word in story]
        assert told.prompt_logprobs == (
            [-position / 8 for position in range(NUM_PROMPT_LOGPROBS)] if index == 0 else []
        )
        assert told.ends == [pb.FINISH_REASON_LENGTH]
    assert answer.seeds == [5], "in the first message only"
    assert answer.usages == [sum(len(story) for story in STORIES[:num_choices])]


@asynccontextmanager
async def narrators(count, **how):
    made = [Narrator(name=f"w{index}", **how) for index in range(count)]
    for narrator in made:
        await narrator.start()
    try:
        yield made
    finally:
        for narrator in made:
            await narrator.stop()


def migrated(house, outcome):
    return house.gateway.metrics.value("dormouse_migrated_total", outcome=outcome)


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("num_choices", [1, len(STORIES)])
async def test_a_stream_goes_on_elsewhere_after_any_number_of_messages(house, death, num_choices):
    """Three workers; two of them give up after the same number of messages, once each."""
    params = pb.SamplingParams(n=num_choices, seed=5)
    num_messages = NUM_PROMPT_LOGPROBS + sum(len(story) for story in STORIES[:num_choices])
    async with narrators(3, death=death) as workers:
        await house.add("tiny", workers)
        for dies_after in range(num_messages + (death != "abort")):
            for worker in workers:
                worker.dies_after, worker.lives = dies_after, 1
            workers[2].lives = 0
            answer = await answer_of(ask(house, sampling_params=params))
            check_whole(answer, num_choices)
    assert house.outstanding() == 0
    assert house.gateway.mover.room.used_bytes == 0


async def test_only_choices_that_moved_say_so_and_those_that_had_ended_are_not_asked_again(house):
    async with narrators(2) as workers:
        workers[0].dies_after = workers[1].dies_after = NUM_MESSAGES - 3  # the shortest story has ended by then
        await house.add("tiny", workers)
        answer = await answer_of(ask(house, sampling_params=ALL))
        resumed = [request.resume.choice_index for worker in workers for request in worker.resumed]
    check_whole(answer, len(STORIES))
    assert {index for index, told in answer.choices.items() if told.migrated} == set(resumed)
    assert 1 not in resumed
    assert resumed
    assert migrated(house, "done") == 1


async def test_a_stream_that_nothing_happens_to_does_not_say_that_it_moved(house):
    async with narrators(1) as workers:
        await house.add("tiny", workers)
        answer = await answer_of(ask(house, sampling_params=ALL))
    check_whole(answer, len(STORIES))
    assert not any(told.migrated for told in answer.choices.values())
    assert migrated(house, "done") is None


async def test_a_stream_goes_on_only_on_the_same_revision(house, kube):
    async with narrators(3, dies_after=4) as workers:
        await house.add("tiny", workers[:1])
        for worker in workers[1:]:
            worker.tell_load(ready=False)
            kube.put(PODS, pod(worker.name, "tiny", worker.address, revision="r2", ready=False))
        call = ask(house, sampling_params=ONE)
        workers[0].holds_after = 1
        await call.read()
        for worker in workers[1:]:
            worker.tell_load(ready=True)
            kube.put(PODS, pod(worker.name, "tiny", worker.address, revision="r2"))
        await house.until(lambda: sum(endpoint.ready for endpoint in endpoints(house)) == 3)
        workers[0].gate.set()
        error = await refusal_of(call)
        assert not workers[1].seen
        assert not workers[2].seen
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details().endswith("no other worker that runs the same can go on")
    assert retry_after_s(error) == 1.0
    assert migrated(house, "nobody") == 1


def endpoints(house):
    (deployment,) = house.gateway.router.catalogue.deployments()
    return house.gateway.router.pool.endpoints_of(deployment.key)


async def test_a_stream_of_a_worker_whose_revision_is_not_known_can_not_go_on(house, kube):
    async with narrators(2, dies_after=1) as workers:
        await house.add("tiny", workers)
        for worker in workers:
            kube.put(PODS, pod(f"tiny-{worker.name}", "tiny", worker.address, revision=""))
        await house.until(lambda: not any(endpoint.revision for endpoint in endpoints(house)))
        error = await refusal_of(ask(house, sampling_params=ONE))
    assert "its revision is not known" in error.details()


async def test_a_stream_that_moved_too_often_ends(make_house):
    async with make_house(max_moves=2) as house, narrators(4, dies_after=1, lives=99) as workers:
        await house.add("tiny", workers)
        error = await refusal_of(ask(house, sampling_params=ONE))
        assert sum(len(worker.seen) for worker in workers) == 3
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details().endswith("it moved 2 times already")
    assert migrated(house, "limit") == 1


async def test_a_stream_may_come_back_to_a_worker_that_it_had_left(house):
    async with narrators(2, dies_after=4, lives=99) as workers:
        await house.add("tiny", workers)
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
        assert sorted(len(worker.seen) for worker in workers if worker.seen) == [1, 2]


async def test_a_stream_does_not_go_on_where_the_same_name_gave_other_model_files(house):
    async with narrators(2, dies_after=4) as workers:
        for worker in workers:
            worker.digest = f"sha256:{worker.name}"
        await house.add("tiny", workers)
        await house.until(lambda: all(endpoint.model_digest for endpoint in endpoints(house)))
        error = await refusal_of(ask(house, sampling_params=ONE))
        assert not any(worker.resumed for worker in workers)
    assert "no other worker that runs the same" in error.details()


async def test_where_moves_are_off_the_first_death_is_the_end(make_house):
    async with make_house(max_moves=0) as house, narrators(2, dies_after=1) as workers:
        await house.add("tiny", workers)
        assert (await refusal_of(ask(house, sampling_params=ONE))).code() is grpc.StatusCode.UNAVAILABLE
        assert not any(worker.resumed for worker in workers)


@pytest.mark.parametrize("room", [{"migrate_stream_bytes": 150}, {"migrate_total_bytes": 150}])
async def test_a_stream_that_outgrew_its_room_ends_with_its_worker(make_house, room):
    async with make_house(**room) as house, narrators(2, dies_after=5) as workers:
        await house.add("tiny", workers)
        error = await refusal_of(ask(house, sampling_params=ONE))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "more was said than is kept" in error.details()
        assert migrated(house, "too_large") == 1
        assert house.gateway.mover.room.used_bytes == 0


async def test_a_worker_that_dies_after_the_last_message_took_nothing_with_it_whatever_was_kept(make_house):
    num_messages = NUM_PROMPT_LOGPROBS + len(STORIES[0])
    async with make_house(migrate_stream_bytes=150) as house, narrators(1, dies_after=num_messages) as workers:
        await house.add("tiny", workers)
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)


async def test_a_worker_that_does_not_take_the_rest_ends_the_stream_with_the_reason(house):
    async with narrators(2, dies_after=4, refuses=True) as workers:
        await house.add("tiny", workers)
        error = await refusal_of(ask(house, sampling_params=ONE))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "the next worker did not take the rest: resume is" in error.details()
    assert migrated(house, "refused") == 1


async def test_a_gap_in_what_the_next_worker_says_ends_the_stream(house):
    async with narrators(2, dies_after=4, skips=False) as workers:
        await house.add("tiny", workers)
        for worker in workers:
            worker.lives = 2
        call = ask(house, sampling_params=ONE)
        await call.read()
        for worker in workers:
            worker.skips = not worker.seen
            worker.lives = 0 if worker.skips else 1
        error = await refusal_of(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "tokens where its worker says" in error.details()
    assert migrated(house, "broken") == 1


async def test_the_requests_own_failure_at_the_next_worker_is_passed_on(house):
    async with narrators(2, dies_after=4) as workers:
        await house.add("tiny", workers)
        call = ask(house, sampling_params=ONE)
        await call.read()
        for worker in workers:
            worker.fail_before = CallError(grpc.StatusCode.INTERNAL, "look for id=1")
        error = await refusal_of(call)
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "look for id=1")
    assert migrated(house, "failed") == 1


async def test_a_full_worker_is_passed_over_for_one_with_room(house):
    async with narrators(3) as workers:
        workers[0].dies_after = 4
        await house.add("tiny", workers[:1])
        workers[0].holds_after = 1
        call = ask(house, sampling_params=ONE)
        answer = Answer()
        answer.take(await call.read())
        workers[1].fail_before = CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue holds 64 requests", 2.5)
        await house.add("tiny", workers)
        workers[0].gate.set()
        while (message := await call.read()) is not aio.EOF:
            answer.take(message)
        assert len(workers[2].resumed) == 1
    check_whole(answer, 1)


async def test_a_client_that_leaves_while_its_stream_moves_frees_every_worker(house):
    async with narrators(2, dies_after=4) as workers:
        await house.add("tiny", workers)
        for worker in workers:
            worker.holds_after = 5
        call = ask(house, sampling_params=ALL)
        await house.until(lambda: any(worker.resumed for worker in workers))
        call.cancel()
        await house.until(lambda: house.outstanding() == 0)
        await house.until(lambda: migrated(house, "cancelled") == 1)
        assert house.gateway.mover.room.used_bytes == 0


async def test_many_streams_of_a_worker_that_dies_all_go_on(house):
    async with narrators(2) as workers:
        await house.add("tiny", workers)
        for worker in workers:
            worker.holds_after = 2
        calls = [asyncio.create_task(answer_of(ask(house, sampling_params=ALL))) for _ in range(50)]
        await house.until(lambda: sum(len(worker.seen) for worker in workers) == 50)
        workers[1].holds_after = None
        workers[1].gate.set()
        await workers[0].stop()
        for answer in await asyncio.gather(*calls):
            check_whole(answer, len(STORIES))


async def test_a_call_that_lost_its_worker_waits_for_the_one_that_comes_back(house):
    async with narrators(1, dies_after=4) as workers:
        await house.add("tiny", workers)
        waited = []

        async def wait(deployment, deadline):
            waited.append((deployment.full_name, deadline > house.gateway.mover.clock()))
            return True

        house.gateway.mover.wait_for_worker = wait
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
    assert waited == [("default/tiny", True)]


async def test_a_long_stream_leaves_a_worker_that_goes_away_when_another_is_ready(make_house, kube):
    async with make_house(migrate_after_s=0.0) as house, narrators(2) as workers:
        await house.add("tiny", workers[:1])
        workers[0].holds_after = 4
        call = ask(house, sampling_params=ALL)
        answer = Answer()
        for _ in range(4):
            answer.take(await call.read())
        await house.add("tiny", workers)
        await kube.delete(PODS, NAMESPACE, "tiny-w0")
        while (message := await call.read()) is not aio.EOF:
            answer.take(message)
        assert workers[1].resumed
    check_whole(answer, len(STORIES))


async def test_a_long_stream_leaves_a_worker_that_says_that_it_drains(make_house):
    async with make_house(migrate_after_s=0.0) as house, narrators(2) as workers:
        await house.add("tiny", workers[:1])
        workers[0].holds_after = 4
        call = ask(house, sampling_params=ONE)
        answer = Answer()
        for _ in range(4):
            answer.take(await call.read())
        await house.add("tiny", workers)
        workers[0].tell_load(draining=True)
        while (message := await call.read()) is not aio.EOF:
            answer.take(message)
    check_whole(answer, 1)


async def test_a_long_stream_stays_on_a_worker_that_goes_away_where_there_is_no_other(make_house, kube):
    async with make_house(migrate_after_s=0.0) as house, narrators(1) as workers:
        await house.add("tiny", workers)
        workers[0].holds_after = 4
        call = ask(house, sampling_params=ONE)
        await call.read()
        await kube.delete(PODS, NAMESPACE, "tiny-w0")
        await house.until(lambda: "retired" in repr(house.gateway.router.pool))
        workers[0].gate.set()
        while (message := await call.read()) is not aio.EOF:
            last = message
    assert last.finish_reason == pb.FINISH_REASON_LENGTH
    assert not last.migrated
