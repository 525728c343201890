"""The certificates that the operator keeps: made once, known again, renewed in time, never over others' Secrets."""

import asyncio
import base64
import math
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dormouse_api.mutual_tls import MutualTls, read_bundle
from dormouse_api.names import Role
from dormouse_kube.api import SECRETS
from dormouse_kube.errors import Conflict, Forbidden, Unavailable
from dormouse_kube.testing import FakeKube
from dormouse_operator.certificates import CertificateAuthority
from dormouse_operator.errors import NotLeading
from dormouse_operator.identities import PERIOD_S, RETRY_S, CertificateSettings, Identities
from dormouse_operator.manifests.identity import secret_file, secret_manifest
from dormouse_operator.model import Key
from dormouse_operator.testing_certificates import an_authority
from dormouse_operator.testing_nouns import observed
from tests.waiting import until

SETTINGS = CertificateSettings(
    namespace="system", release="r", lifetime=timedelta(days=1), authority_lifetime=timedelta(days=3650)
)
CA, GATEWAY = "r-authority", "r-gateway-identity"


class Lease:
    """The right to act."""

    epoch = 1
    leads = True

    def check(self):
        if not self.leads:
            raise NotLeading("another one leads")


class House:
    """An operator's certificates over a cluster in memory, and a clock that can be moved."""

    def __init__(self, kube=None, settings=SETTINGS):
        self.kube = kube or FakeKube()
        self.now = datetime.now(UTC)
        self.tls, self.lease = MutualTls(), Lease()
        self.identities = Identities(self.kube, self.tls, settings, authority=self.lease, now=lambda: self.now)

    def secret(self, name, namespace="system"):
        return self.kube.peek(SECRETS, namespace, name)

    def cert(self, name, namespace="system"):
        return secret_file(self.secret(name, namespace), "tls.crt")

    def writes(self):
        return [call.verb for call in self.kube.calls if call.verb in {"create", "apply"}]


@pytest.fixture
def house():
    return House()


def mounted(directory, secret):
    """Write a Secret's files as the kubelet does."""
    for name, content in secret["data"].items():
        (directory / name).write_bytes(base64.b64decode(content))
    return directory


async def test_a_new_release_gets_an_authority_and_certificates_for_itself_and_its_gateways(house, tmp_path):
    assert await house.identities.step()
    assert secret_file(house.secret(CA), "tls.key")
    assert str(house.tls.identity) == "dormouse://operator/system/r"
    gateway = read_bundle(mounted(tmp_path, house.secret(GATEWAY)))
    assert str(gateway.identity) == "dormouse://gateway/system/r"
    assert house.secret(GATEWAY)["type"] == "kubernetes.io/tls"
    assert "PRIVATE" not in repr(house.identities)


async def test_the_workers_of_a_deployment_get_one_that_goes_with_it(house, tmp_path):
    seen = observed()
    house.identities.saw(seen)
    await house.identities.step()
    key = seen.deployment.key
    secret = house.secret(f"{key.name}-identity", key.namespace)
    worker = read_bundle(mounted(tmp_path, secret)).identity
    assert (worker.role, worker.namespace, worker.name) == (Role.WORKER, *key)
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [seen.deployment.uid]
    house.identities.forget(key)
    assert repr(house.identities).startswith("Identities(1 of 1 issued")
    house.identities.saw(replace(seen, deployment=replace(seen.deployment, is_deleting=True)))
    assert repr(house.identities).startswith("Identities(1 of 1 issued")


async def test_at_rest_nothing_but_the_authority_is_read(house):
    house.identities.saw(observed())
    await house.identities.step()
    house.kube.calls.clear()
    house.identities.saw(observed())
    await house.identities.step()
    assert [(call.verb, call.name) for call in house.kube.calls] == [("get", CA)]


async def test_an_operator_that_starts_anew_knows_what_was_issued(house):
    house.identities.saw(observed())
    await house.identities.step()
    house.kube.calls.clear()
    second = House(house.kube)
    second.identities.saw(observed())
    await second.identities.step()
    assert not second.writes()
    assert str(second.tls.identity) == "dormouse://operator/system/r"


async def test_certificates_are_renewed_while_a_third_of_their_time_is_left(house):
    await house.identities.step()
    first, own = house.cert(GATEWAY), house.tls.version
    house.now += timedelta(hours=15)
    await house.identities.step()
    assert (house.cert(GATEWAY), house.tls.version) == (first, own)
    house.now += timedelta(hours=2)
    await house.identities.step()
    assert house.cert(GATEWAY) != first
    assert house.tls.version == own + 1
    assert house.tls.expiry_s > 86400


def authority_secret(name, authority):
    files = {"tls.crt": authority.cert_pem, "tls.key": authority.key_pem}
    return secret_manifest({"namespace": "system", "name": name}, files)


async def test_somebody_elses_authority_is_used_and_waited_for():
    house = House(settings=replace(SETTINGS, authority_secret="corporate"))
    assert not await house.identities.step()
    assert math.isnan(house.tls.expiry_s)
    assert math.isnan(house.identities.authority_expiry_s)
    authority = an_authority()
    house.kube.put(SECRETS, authority_secret("corporate", authority))
    assert await house.identities.step()
    assert authority.validity_of(house.cert(GATEWAY))
    assert house.secret(CA) is None
    assert house.identities.authority_expiry_s == pytest.approx(10 * 86400, abs=60)


async def test_of_two_operators_that_make_an_authority_one_takes_the_others(house):
    other = House(house.kube)
    house.kube.fail("get", SECRETS, Unavailable("not now"))
    assert not await other.identities.step()
    await house.identities.step()
    made = await other.identities._new_authority()
    assert isinstance(made, CertificateAuthority)
    assert made.cert_pem == house.cert(CA)


async def test_an_authority_that_can_not_be_read_stops_nothing_but_certificates(house, caplog):
    house.kube.put(SECRETS, secret_manifest({"namespace": "system", "name": CA}, {"tls.crt": b"x", "tls.key": b"y"}))
    assert not await house.identities.step()
    assert "no certificates can be issued: the authority can not be read" in caplog.text


async def test_a_secret_that_somebody_else_made_stays_as_it_is(house, caplog):
    seen = observed()
    name = f"{seen.deployment.key.name}-identity"
    theirs = secret_manifest({"namespace": seen.deployment.key.namespace, "name": name}, {"password": b"secret"})
    house.kube.put(SECRETS, theirs)
    house.identities.saw(seen)
    assert not await house.identities.step()
    assert house.secret(name, seen.deployment.key.namespace)["data"] == theirs["data"]
    assert "a Secret of this name is there that somebody else made" in caplog.text


async def test_what_fails_for_one_does_not_stop_the_others(house, caplog):
    house.identities.saw(observed())
    house.kube.fail("apply", SECRETS, Forbidden("no rights here"))
    assert not await house.identities.step()
    assert caplog.text.count("was not issued") == 1
    assert await house.identities.step()


async def test_who_does_not_lead_writes_nothing(house):
    house.lease.leads = False
    with pytest.raises(NotLeading):
        await house.identities.step()
    assert not house.writes()


async def test_it_looks_every_minute_sooner_after_a_failure_and_at_once_at_a_new_deployment(house):
    waits = []
    house.kube.fail("get", SECRETS, Conflict("odd"))

    async def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            house.identities.saw(observed())
        if len(waits) > 1:
            await asyncio.Event().wait()

    running = asyncio.create_task(house.identities.run(sleep))
    await until(lambda: len(waits) == 3)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert waits == [RETRY_S, PERIOD_S, PERIOD_S]
    assert house.secret(f"{observed().deployment.key.name}-identity", observed().deployment.key.namespace)


def test_what_is_no_file_of_a_secret_is_empty():
    assert secret_file({"data": {"tls.crt": "no base64!"}}, "tls.crt") == b""
    assert secret_file({"data": {"tls.crt": 7}}, "tls.crt") == b""
    assert secret_file({}, "tls.crt") == b""


def test_a_deployment_is_known_by_the_name_of_its_secret(house):
    assert Key("system", GATEWAY) in house.identities._wanted
