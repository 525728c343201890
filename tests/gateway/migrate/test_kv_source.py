"""Who goes on with a stream is told who had it, and is let in there: as a worker, and nowhere else."""

from dormouse_api.names import Role
from dormouse_api.testing_tickets import GATEWAY_SEED, SEEDS, public_key
from dormouse_api.tickets import TicketCheck, public_check
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.migrate.kv_source import kv_sources
from dormouse_gateway.migrate.progress import Choice, resumed
from dormouse_gateway.model import Endpoint, EndpointId
from dormouse_gateway.seeds import Seeds
from tests.gateway.kit import ask
from tests.gateway.moving import ONE, answer_of, check_whole, narrators

ENDPOINT = Endpoint(
    id=EndpointId("uid", "10.0.0.1:50051"), pod=("team", "pod"), deployment=("team", "tiny"), ready=True
)


def check_of(pod_uid):
    """Return what a worker knows: gateways sign for workers, too."""
    checks = [public_check(public_key(Role.GATEWAY))]
    return TicketCheck([pod_uid], {Role.GATEWAY: checks, Role.WORKER: checks})


def shown(source):
    return [("dormouse-ticket", ticket) for ticket in source.tickets]


def test_a_ticket_opens_one_workers_blocks_and_nothing_of_a_gateway():
    source = kv_sources(Seeds((GATEWAY_SEED, SEEDS[Role.OPERATOR])).introductions())(ENDPOINT)
    assert (source.address, len(source.tickets)) == ("10.0.0.1:50051", 2)
    assert check_of("uid").role_of(shown(source)) is Role.WORKER
    assert check_of("another").role_of(shown(source)) is Role.CLIENT


def test_without_a_key_nobody_is_named():
    assert kv_sources(Seeds().introductions())(ENDPOINT) is None


def test_a_request_for_the_rest_names_it():
    source = pb.KvSource(address="a:1", tickets=["t"])
    body = pb.GenerateRequest(sampling_params=ONE).SerializeToString()
    assert pb.GenerateRequest.FromString(resumed(body, Choice(0), source=source)).resume.kv_source == source
    assert not pb.GenerateRequest.FromString(resumed(body, Choice(0))).resume.HasField("kv_source")


async def test_a_stream_that_moves_says_where_it_was(house):
    async with narrators(2) as workers:
        workers[0].dies_after, workers[1].dies_after = 3, 3
        await house.add("tiny", workers)
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
        told = [(each.resume.kv_source.address, worker) for worker in workers for each in worker.resumed]
        addresses = {worker.address for worker in workers}
    assert told
    assert all(address in addresses - {worker.address} for address, worker in told)
