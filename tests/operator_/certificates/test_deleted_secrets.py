"""A Secret with certificates that somebody deletes: made again when a pod waits for it, and for gateways at once."""

from dataclasses import replace
from datetime import timedelta

import pytest

from dormouse_kube.api import SECRETS
from dormouse_operator.certificates.shelves import PATIENCE
from dormouse_operator.manifests.identity import identity_secret_name, secret_file
from dormouse_operator.testing.nouns import a_pod, but
from tests.operator_.certificates.kit import CA, GATEWAY, House, a_deployment, files_of, neighbours, secret_of


@pytest.fixture
def house():
    return House()


def a_waiting_deployment(name="tiny", **fields):
    """Return one with a pod that has a node, and no address there."""
    return replace(a_deployment(name), pods=(a_pod(**{"owner_uid": f"uid-{name}", "ip": "", **fields}),))


async def test_a_secret_that_somebody_deleted_is_made_again_when_a_pod_waits_for_it(house):
    one, other = neighbours()
    for name in (one, other):
        house.identities.saw(a_deployment(name))
    await house.identities.step()
    house.kube.finish_deletion(SECRETS, "team", identity_secret_name(one))
    house.identities.saw(a_waiting_deployment(one))
    house.now += PATIENCE - timedelta(seconds=1)
    await house.identities.step()
    assert secret_of(house) is None
    house.now += timedelta(seconds=1)
    assert await house.identities.step()
    assert all(files_of(house, name)["tls.key"] for name in (one, other)), "of those too whose pods run"


async def test_a_follower_that_waits_is_looked_after_like_any_pod(house):
    house.identities.saw(a_deployment())
    await house.identities.step()
    house.kube.finish_deletion(SECRETS, "team", identity_secret_name("tiny"))
    waiting = a_waiting_deployment()
    house.identities.saw(but(waiting, pods=(), followers={"leader": waiting.pods}))
    house.now += PATIENCE
    await house.identities.step()
    assert files_of(house)["tls.key"]


async def test_for_pods_that_wait_for_something_else_a_secret_is_read_once_a_minute(house):
    house.identities.saw(a_waiting_deployment())
    await house.identities.step()
    house.kube.calls.clear()
    for _ in range(6):
        house.now += PATIENCE / 2
        house.identities.saw(a_waiting_deployment())
        await house.identities.step()
    assert [call.verb for call in house.kube.calls if call.name == identity_secret_name("tiny")] == ["get"] * 3


@pytest.mark.parametrize(
    "fields", [{"owner_uid": "nobody"}, {"is_scheduled": False}, {"is_deleting": True}, {"has_ended": True}], ids=str
)
async def test_for_other_pods_without_an_address_no_secret_is_read(house, fields):
    house.identities.saw(a_deployment())
    await house.identities.step()
    house.kube.calls.clear()
    house.identities.saw(a_waiting_deployment(**fields))
    house.now += PATIENCE
    await house.identities.step()
    assert [call.name for call in house.kube.calls] == [CA, GATEWAY]


async def test_once_the_pod_runs_no_secret_is_read_for_it(house):
    house.identities.saw(a_waiting_deployment())
    await house.identities.step()
    house.identities.saw(a_deployment())
    house.kube.calls.clear()
    house.now += PATIENCE
    await house.identities.step()
    assert [call.name for call in house.kube.calls] == [CA, GATEWAY]


async def test_the_gateways_secret_that_somebody_deleted_is_made_again_at_the_next_look(house):
    await house.identities.step()
    house.kube.finish_deletion(SECRETS, "system", GATEWAY)
    assert await house.identities.step()
    assert secret_file(house.secret(GATEWAY), "tls.key")
