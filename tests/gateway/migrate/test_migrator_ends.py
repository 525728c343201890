"""Streams whose worker died and that cannot go on: one status, at once, with the reason. Real sockets."""

import grpc
import pytest

from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_api.status import CallError, retry_after_s
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.call import Call
from dormouse_gateway.clients.requests import METHODS
from dormouse_gateway.errors import WorkerFailure, stopped
from dormouse_gateway.hold.wait import HoldTicket
from dormouse_gateway.migrate.evictions import Evictions
from dormouse_gateway.migrate.migrator import Migrator, MovingLimits
from dormouse_gateway.testing.moves import NUM_PROMPT_LOGPROBS, STORIES
from dormouse_gateway.testing.workers import NAMESPACE, deployment, endpoint, pod
from dormouse_kube.api import PODS
from tests.gateway.kit import ask, refusal_of
from tests.gateway.moving import ALL, ONE, answer_of, check_whole, endpoints, migrated, narrators


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
        await kube.delete(PODS, NAMESPACE, "tiny-w0")
        await house.until(lambda: len(endpoints(house)) == 2)
        workers[0].gate.set()
        error = await refusal_of(call)
        assert not workers[1].seen
        assert not workers[2].seen
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "no other worker that runs the same can go on: the workers of default/tiny run another" in error.details()
    assert retry_after_s(error) == 1.0
    assert migrated(house, "nobody") == 1


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


async def test_a_stream_does_not_go_on_where_the_same_name_gave_other_model_files(house, kube):
    async with narrators(2, dies_after=4, holds_after=2) as workers:
        for worker in workers:
            worker.digest = f"sha256:{worker.name}"
        await house.add("tiny", workers)
        await house.until(lambda: all(endpoint.model_digest for endpoint in endpoints(house)))
        call = ask(house, sampling_params=ONE)
        await call.read()
        (left,) = [worker for worker in workers if worker.seen]
        await kube.delete(PODS, NAMESPACE, f"tiny-{left.name}")
        await house.until(lambda: len(endpoints(house)) == 1)
        left.gate.set()
        error = await refusal_of(call)
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
        assert house.gateway.migrator.room.used_bytes == 0


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
    async with narrators(2, dies_after=4, lives=2, holds_after=1) as workers:
        await house.add("tiny", workers)
        call = ask(house, sampling_params=ONE)
        await call.read()
        for worker in workers:
            worker.skips = not worker.seen
            worker.lives = 0 if worker.skips else 1
            worker.gate.set()
        error = await refusal_of(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "tokens where its worker says" in error.details()
    assert migrated(house, "broken") == 1


async def test_a_gap_in_what_the_first_worker_said_is_no_ground_to_go_on_from(house):
    async with narrators(2, dies_after=5, skips=True) as workers:
        await house.add("tiny", workers)
        error = await refusal_of(ask(house, sampling_params=ONE))
        assert not any(worker.resumed for worker in workers)
    assert "choice 0 has 1 tokens where its worker says 2" in error.details()
    assert migrated(house, "broken") == 1


async def test_a_worker_that_falls_silent_where_it_should_go_on_ends_the_stream(house):
    async with narrators(2, dies_after=4, falls_silent=True) as workers:
        await house.add("tiny", workers)
        error = await refusal_of(ask(house, sampling_params=ONE))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "ended without a last message" in error.details()
    assert migrated(house, "broken") == 1


async def test_a_request_that_would_outgrow_a_message_is_not_sent(house):
    async with narrators(2, dies_after=4) as workers:
        await house.add("tiny", workers)
        params, fields = {"seed": 5, "n": 1}, {"request_id": "x" * 128}
        request = pb.GenerateRequest(model="tiny", sampling_params=pb.SamplingParams(**params), **fields)
        request.text = "a" * (MAX_MESSAGE_BYTES - request.ByteSize() - 4)  # key and length of the text
        error = await refusal_of(house.stub.Generate(request, timeout=90))
        assert not any(worker.resumed for worker in workers)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert f"exceed {MAX_MESSAGE_BYTES} bytes" in error.details()
    assert migrated(house, "too_large") == 1


async def test_after_its_deadline_a_request_is_not_asked_again():
    failure = stopped(endpoint("w0"), why="draining", messages=0)
    asked = []

    async def attempt(_call, _write, where):
        asked.append(where)
        return failure

    async def write(_raw):
        raise AssertionError("nobody said anything")

    migrator = Migrator(MovingLimits(), Evictions(lambda _: False, after_s=1.0), clock=lambda: 10.0)
    with pytest.raises(WorkerFailure):
        await migrator.go(Call(METHODS[0], deployment(), b"", (), 10.0, HoldTicket(0, 10.0)), write, attempt)
    assert len(asked) == 1


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
        assert house.gateway.migrator.room.used_bytes == 0
