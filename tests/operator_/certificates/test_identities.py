"""The certificates that the operator keeps: made once, known again, renewed in time, never over others' Secrets."""

import asyncio
import base64
import math
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from dormouse_api.mutual_tls import read_bundle
from dormouse_kube.api import SECRETS
from dormouse_kube.errors import Conflict, Forbidden, Unavailable
from dormouse_operator.certificates.authority import CertificateAuthority, validity_under
from dormouse_operator.certificates.identities import PERIOD_S, RETRY_S
from dormouse_operator.errors import NotLeading
from dormouse_operator.manifests.identity import identity_secret_name, secret_file, secret_manifest
from dormouse_operator.model import Key
from dormouse_operator.testing.certificates import an_authority
from dormouse_operator.testing.nouns import a_situation
from tests.operator_.certificates.kit import (
    CA,
    GATEWAY,
    SETTINGS,
    House,
    a_deployment,
    authority_secret,
    files_of,
    neighbours,
    owners_of,
    secret_of,
)
from tests.waiting import until


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
    house.identities.saw(a_deployment())
    await house.identities.step()
    for name, content in files_of(house).items():
        (tmp_path / name).write_bytes(content)
    assert str(read_bundle(tmp_path).identity) == "dormouse://worker/team/tiny"
    [owner] = secret_of(house)["metadata"]["ownerReferences"]
    assert (owner["uid"], owner.get("controller")) == ("uid-tiny", None)
    house.identities.forget(Key("team", "tiny"))
    house.identities.saw(a_deployment(is_deleting=True))
    house.kube.calls.clear()
    await house.identities.step()
    assert repr(house.identities).startswith("Identities(1 of 1 issued")
    assert not house.writes(), "the Secret goes with its last owner"
    house.kube.calls.clear()
    await house.identities.step()
    assert [call.name for call in house.kube.calls] == [CA, GATEWAY]


async def test_deployments_share_a_secret_and_one_that_goes_takes_its_files_alone(house):
    one, other = neighbours()
    house.identities.saw(a_deployment(one))
    await house.identities.step()
    first = files_of(house, one)
    house.identities.saw(a_deployment(other))
    await house.identities.step()
    assert (files_of(house, one), owners_of(house)) == (first, [one, other])
    assert files_of(house, other)["tls.key"] not in {b"", first["tls.key"]}
    kept = files_of(house, other)
    house.identities.forget(Key("team", one))
    await house.identities.step()
    assert (files_of(house, other), owners_of(house)) == (kept, [other])
    assert set(secret_of(house)["data"]) == {f"{other}.tls.crt", f"{other}.tls.key", "ca.crt"}


async def test_what_deployments_have_that_were_not_seen_yet_stays(house):
    one, other, third = neighbours(3)
    for name in (one, other):
        house.identities.saw(a_deployment(name))
    await house.identities.step()
    before = files_of(house, other)
    anew = House(house.kube)
    for name in (one, third):
        anew.identities.saw(a_deployment(name))
    await anew.identities.step()
    assert files_of(anew, other) == before
    assert files_of(anew, third)["tls.key"]
    assert owners_of(anew) == [one, other, third]


async def test_files_whose_deployment_is_no_owner_any_more_go_at_the_next_write(house):
    """The garbage collector removes references to what is gone; nobody told this operator."""
    one, other = neighbours()
    for name in (one, other):
        house.identities.saw(a_deployment(name))
    await house.identities.step()
    references = secret_of(house)["metadata"]["ownerReferences"]
    left = [reference for reference in references if reference["name"] == one]
    house.kube.edit(
        SECRETS, "team", identity_secret_name(one), lambda raw: raw["metadata"].update(ownerReferences=left)
    )
    anew = House(house.kube)
    anew.identities.saw(a_deployment(one))
    anew.now += timedelta(hours=17)
    await anew.identities.step()
    assert set(secret_of(anew)["data"]) == {f"{one}.tls.crt", f"{one}.tls.key", "ca.crt"}


async def test_a_deployment_that_is_made_anew_under_its_name_gets_another_key(house):
    house.identities.saw(a_deployment())
    await house.identities.step()
    before = files_of(house)
    house.identities.saw(a_deployment(uid="another"))
    await house.identities.step()
    assert files_of(house)["tls.key"] != before["tls.key"]
    assert [owner["uid"] for owner in secret_of(house)["metadata"]["ownerReferences"]] == ["another"]


async def test_a_secret_that_changed_since_it_was_read_is_read_again(house):
    """Another one may have written what this operator has not seen."""
    await house.identities.step()
    house.identities.saw(a_deployment())
    house.kube.fail("apply", SECRETS, Conflict("the object has been modified"))
    assert not await house.identities.step()
    assert await house.identities.step()
    written = [call.verb for call in house.kube.calls if call.name == identity_secret_name("tiny")]
    assert written == ["get", "apply", "get", "apply"]


async def test_a_secret_of_somebody_else_is_left_alone_once_nobody_needs_it(house):
    house.kube.put(SECRETS, secret_manifest({"namespace": "team", "name": identity_secret_name("tiny")}, {}))
    house.identities.saw(a_deployment())
    assert not await house.identities.step()
    house.identities.forget(Key("team", "tiny"))
    assert not await house.identities.step()
    assert await house.identities.step()


async def test_at_rest_only_the_secrets_of_the_release_are_read(house):
    house.identities.saw(a_situation())
    await house.identities.step()
    house.kube.calls.clear()
    house.identities.saw(a_situation())
    await house.identities.step()
    assert [(call.verb, call.name) for call in house.kube.calls] == [("get", CA), ("get", GATEWAY)]


async def test_an_operator_that_starts_anew_knows_what_was_issued(house):
    house.identities.saw(a_situation())
    await house.identities.step()
    house.kube.calls.clear()
    second = House(house.kube)
    second.identities.saw(a_situation())
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


async def test_somebody_elses_authority_is_used_and_waited_for():
    house = House(settings=replace(SETTINGS, authority_secret="corporate"))
    assert not await house.identities.step()
    assert math.isnan(house.tls.expiry_s)
    assert math.isnan(house.identities.authority_expiry_s)
    authority = an_authority()
    house.kube.put(SECRETS, authority_secret("corporate", authority))
    assert await house.identities.step()
    assert validity_under(house.cert(GATEWAY), authority.root_pem)
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
    assert "no certificates can be issued: the authority cannot be read" in caplog.text


async def test_a_secret_that_somebody_else_made_stays_as_it_is(house, caplog):
    name = identity_secret_name("tiny")
    theirs = secret_manifest({"namespace": "team", "name": name}, {"password": b"secret"})
    house.kube.put(SECRETS, theirs)
    house.identities.saw(a_deployment())
    assert not await house.identities.step()
    assert secret_of(house)["data"] == theirs["data"]
    assert f"a Secret of this name exists that the operator did not make; remove or rename team/{name}" in caplog.text


async def test_what_fails_for_one_does_not_stop_the_others(house, caplog):
    house.identities.saw(a_situation())
    house.kube.fail("apply", SECRETS, Forbidden("no rights here"))
    assert not await house.identities.step()
    assert caplog.text.count("were not issued") == 1
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
            house.identities.saw(a_situation())
        if len(waits) > 1:
            await asyncio.Event().wait()

    running = asyncio.create_task(house.identities.run(sleep))
    await until(lambda: len(waits) == 3)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert waits == [RETRY_S, PERIOD_S, PERIOD_S]
    assert files_of(house)["tls.crt"]


def test_what_is_no_file_of_a_secret_is_empty():
    assert secret_file({"data": {"tls.crt": "no base64!"}}, "tls.crt") == b""
    assert secret_file({"data": {"tls.crt": 7}}, "tls.crt") == b""
    assert secret_file({}, "tls.crt") == b""


async def test_a_deployment_that_is_forgotten_and_seen_again_before_a_write_keeps_its_certificate(house):
    house.identities.saw(a_situation())
    assert await house.identities.step()
    house.identities.forget(Key("team", "tiny"))
    house.identities.saw(a_situation())
    assert await house.identities.step()
    written = house.writes()
    for _ in range(3):
        assert await house.identities.step()
    assert house.writes() == written
    assert secret_file(house.secret(identity_secret_name("tiny"), "team"), "tiny.tls.crt")


async def test_a_deployment_whose_spec_can_not_be_read_keeps_its_certificate_and_gets_the_next(house):
    house.identities.rejected(Key("team", "tiny"), a_situation().deployment.uid)
    assert await house.identities.step()
    first = secret_file(house.secret(identity_secret_name("tiny"), "team"), "tiny.tls.crt")
    house.now += timedelta(hours=20)
    assert await house.identities.step()
    assert first not in {b"", secret_file(house.secret(identity_secret_name("tiny"), "team"), "tiny.tls.crt")}
