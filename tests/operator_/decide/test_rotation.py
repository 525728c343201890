"""The authority is replaced: both are trusted meanwhile, and no connection fails though holders see it late."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from grpc import aio

from dormouse_api.limits import channel_options
from dormouse_api.mutual_tls import MutualTls, open_channel
from dormouse_api.names import Role
from dormouse_kube.api import SECRETS
from dormouse_kube.testing import FakeKube
from dormouse_operator.certificates.authority import (
    BadCertificate,
    CertificateAuthority,
    certificates_in,
    validity_under,
)
from dormouse_operator.decide.rotation import PATIENCE, SPREAD, Held, Rotation
from dormouse_operator.manifests.common import owner_of
from dormouse_operator.manifests.identity import identity_secret_name, secret_file, secret_manifest, shared_metadata
from dormouse_operator.testing.certificates import a_bundle, an_authority
from dormouse_operator.testing.nouns import a_situation
from tests.operator_.certificates.kit import CA, GATEWAY, House, authority_secret

LATE = timedelta(seconds=120)  # so late a process may use what stands in its Secret
STEP = timedelta(seconds=30)
SEEN = a_situation()
NAME = SEEN.deployment.key.name
WORKERS = (identity_secret_name(NAME), SEEN.deployment.key.namespace)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def files(house):
    """Return what each holder's files are now: (certificate, authorities)."""
    own = house.tls._bundle
    secrets = {"gateway": house.secret(GATEWAY), "workers": house.secret(*WORKERS)}
    certs = {"gateway": "tls.crt", "workers": f"{NAME}.tls.crt"}
    told = {name: (secret_file(raw, certs[name]), secret_file(raw, "ca.crt")) for name, raw in secrets.items()}
    return told | {"operator": (own.cert, own.ca)}


def accepts(ca, cert):
    for authority in certificates_in(ca):
        try:
            validity_under(cert, authority)
        except BadCertificate:
            continue
        return True
    return False


async def ready():
    house = House()
    house.identities.saw(SEEN)
    assert await house.identities.step()
    return house


async def pass_time(house, steps):
    """Let time pass; return the files at each step."""
    told = []
    for _ in range(steps):
        house.now += STEP
        assert await house.identities.step()
        told.append((house.now, files(house)))
    return told


def assert_nobody_refused_anybody(told):
    for (at, some), (then, others) in itertools.product(told, told):
        if abs(at - then) <= LATE:
            for (one, (_, ca)), (other, (cert, _)) in itertools.product(some.items(), others.items()):
                assert accepts(ca, cert), f"{one} as of {at:%T} does not accept {other} as of {then:%T}"


def issuers(told):
    return {
        validity_under(cert, authority) and authority
        for cert, ca in told[-1][1].values()
        for authority in certificates_in(ca)
        if accepts(authority, cert)
    }


async def test_while_the_authority_is_replaced_everybody_accepts_everybody_however_late_they_hear():
    house = await ready()
    told = await pass_time(house, 10)
    first, second = house.cert(CA), an_authority()
    house.kube.put(SECRETS, authority_secret(CA, second))
    told += await pass_time(house, 20)
    assert_nobody_refused_anybody(told)
    assert issuers(told) == {second.root_pem}
    assert {ca for _, ca in told[-1][1].values()} == {second.cert_pem}, "the first is trusted no more"
    assert first != second.cert_pem


async def test_a_second_replacement_in_the_midst_of_the_first_is_the_same():
    house = await ready()
    told = await pass_time(house, 5)
    house.kube.put(SECRETS, authority_secret(CA, an_authority()))
    told += await pass_time(house, 20)
    third = an_authority()
    house.kube.put(SECRETS, authority_secret(CA, third))
    told += await pass_time(house, 20)
    assert_nobody_refused_anybody(told)
    assert {ca for _, ca in told[-1][1].values()} == {third.cert_pem}


@pytest.mark.parametrize("steps_before", [1, 3, 6, 9, 12])
async def test_an_operator_that_starts_anew_goes_on_where_the_secrets_stand(steps_before):
    """Its own certificate is new, which those accept who have heard of the present authority."""
    house = await ready()
    told = await pass_time(house, 5)
    second = an_authority()
    house.kube.put(SECRETS, authority_secret(CA, second))
    told += await pass_time(house, steps_before)
    anew = House(house.kube)
    anew.now = house.now
    anew.identities.saw(SEEN)
    told += await pass_time(anew, 20)
    without_operator = [(at, {name: f for name, f in seen.items() if name != "operator"}) for at, seen in told]
    assert_nobody_refused_anybody(without_operator)
    assert {ca for _, ca in told[-1][1].values()} == {second.cert_pem}


async def test_a_deployment_that_comes_meanwhile_is_accepted_by_all():
    house = House()
    assert await house.identities.step()
    house.kube.put(SECRETS, authority_secret(CA, an_authority()))
    house.now += STEP
    await house.identities.step()
    house.identities.saw(SEEN)
    told = await pass_time(house, 20)
    assert_nobody_refused_anybody(told)


async def test_an_authority_that_has_expired_issues_nothing_while_it_is_trusted():
    house = House()
    short = CertificateAuthority.create("r", now=house.now, lifetime=timedelta(seconds=20))
    house.kube.put(SECRETS, authority_secret(CA, short))
    await house.identities.step()
    second = an_authority()
    house.kube.put(SECRETS, authority_secret(CA, second))
    house.now += STEP
    assert await house.identities.step()
    assert accepts(second.root_pem, house.cert(GATEWAY))


async def test_a_certificate_that_nobody_known_issued_is_replaced():
    kube, stranger = FakeKube(), an_authority()
    house = House(kube)
    await house.identities.step()
    raw = house.secret(GATEWAY)
    broken = {**raw, "data": {**raw["data"], **_data(a_bundle(stranger, Role.GATEWAY).cert)}}
    kube.put(SECRETS, broken)
    anew = House(kube)
    assert await anew.identities.step()
    assert accepts(secret_file(anew.secret(CA), "tls.crt"), anew.cert(GATEWAY))


def _data(cert):
    return {"tls.crt": authority_secret("x", _Pem(cert))["data"]["tls.crt"]}


class _Pem:
    """Stands for an authority with this certificate."""

    key_pem = b""

    def __init__(self, cert_pem):
        self.cert_pem = cert_pem


@pytest.mark.parametrize("is_server_new", [True, False])
async def test_grpc_takes_both_authorities_from_one_file_though_they_have_the_same_name(is_server_new):
    old, new = an_authority(), an_authority()
    both = b"".join(sorted([old.cert_pem, new.cert_pem]))
    issuer_of = {True: new, False: old}
    server = replace(a_bundle(issuer_of[is_server_new], Role.WORKER), ca=both)
    client = replace(a_bundle(issuer_of[not is_server_new], Role.GATEWAY), ca=both)
    listening = aio.server()
    port = listening.add_secure_port("127.0.0.1:0", MutualTls(server).server_credentials())
    await listening.start()
    try:
        async with open_channel(f"127.0.0.1:{port}", MutualTls(client), Role.WORKER, channel_options()) as channel:
            await channel.channel_ready()
    finally:
        await listening.stop(None)


def a_tenants_secret(tenants, *, is_immutable=False, extra=b""):
    """Return what somebody who may write Secrets in the workers' namespace puts there, labelled like the operator's."""
    worker = a_bundle(tenants, Role.WORKER)
    metadata = shared_metadata(WORKERS[1], WORKERS[0]) | {"ownerReferences": [owner_of(SEEN.deployment)]}
    data = {f"{NAME}.tls.crt": worker.cert, f"{NAME}.tls.key": worker.key, "ca.crt": tenants.cert_pem + extra}
    return secret_manifest(metadata, data, "Opaque") | ({"immutable": True} if is_immutable else {})


def everybodys_authorities(house):
    """Return all authorities that operator and gateways trust."""
    return {*certificates_in(house.tls._bundle.ca), *certificates_in(secret_file(house.secret(GATEWAY), "ca.crt"))}


@pytest.mark.parametrize("has_ours", [False, True])
@pytest.mark.parametrize("is_immutable", [False, True])
async def test_an_authority_that_a_tenant_puts_into_his_secret_is_trusted_by_nobody(is_immutable, has_ours):
    """Neither by an operator that starts anew, nor while the authority is replaced; and that ends all the same."""
    first = House()
    assert await first.identities.step()
    tenants, ours = an_authority(), first.cert(CA)
    secret = a_tenants_secret(tenants, is_immutable=is_immutable, extra=ours if has_ours else b"")
    first.kube.put(SECRETS, secret)
    house, second = House(first.kube), an_authority()
    house.identities.saw(SEEN)
    for at in range(60):
        if at == 3:
            house.kube.put(SECRETS, authority_secret(CA, second))
        assert await house.identities.step() is not is_immutable
        assert everybodys_authorities(house) <= {ours, second.root_pem}, f"at step {at}"
        house.now += STEP
    assert everybodys_authorities(house) == {second.root_pem}
    assert accepts(second.root_pem, house.cert(GATEWAY))
    told = secret_file(house.secret(*WORKERS), "ca.crt")
    assert told == (secret_file(secret, "ca.crt") if is_immutable else second.root_pem)


async def test_a_secret_of_somebody_else_holds_the_others_up_no_longer_than_our_patience(caplog):
    house = House()
    other = a_tenants_secret(an_authority())
    del other["metadata"]["labels"]
    house.kube.put(SECRETS, other)
    house.identities.saw(SEEN)
    assert not await house.identities.step()
    house.kube.put(SECRETS, authority_secret(CA, second := an_authority()))
    seen = []
    for _ in range(int((PATIENCE + 2 * SPREAD) / STEP) + 3):
        assert not await house.identities.step()
        seen.append(len(everybodys_authorities(house)))
        house.now += STEP
    assert set(seen[: int(PATIENCE / STEP)]) == {2}, "so long they wait"
    assert everybodys_authorities(house) == {second.root_pem}
    assert house.secret(*WORKERS)["data"] == other["data"]
    assert "remove or rename {}/{}".format(*reversed(WORKERS)) in caplog.text


async def test_the_gateways_secret_is_waited_for_however_long():
    house = await ready()
    ours = house.cert(CA)
    house.kube.edit(SECRETS, "system", GATEWAY, lambda secret: secret.update(immutable=True))
    house.kube.put(SECRETS, authority_secret(CA, second := an_authority()))
    for _ in range(60):
        assert not await house.identities.step()
        house.now += STEP
    assert {*certificates_in(house.tls._bundle.ca)} == {ours, second.root_pem}


async def test_without_the_gateways_secret_nothing_is_issued(caplog):
    """It may say of a former authority, which the others still show."""
    house = House()
    other = authority_secret(GATEWAY, an_authority())
    house.kube.put(SECRETS, other)
    assert not await house.identities.step()
    assert house.secret(GATEWAY)["data"] == other["data"]
    assert f"remove or rename system/{GATEWAY}" in caplog.text


def held(*, issuer=b"new", trusts=(b"old", b"new")):
    return Held(issuer, NOW, NOW, b"", frozenset(trusts))


def test_each_step_waits_until_all_have_made_the_one_before():
    rotation = Rotation(NOW)
    rotation.look([held(issuer=b"old"), held(issuer=b"old", trusts=[b"old"])], b"new", NOW)
    assert not rotation.may_issue(NOW + SPREAD)
    rotation.look([held(issuer=b"old"), held(issuer=b"old")], b"new", NOW)
    rotation.look([held(issuer=b"old"), held(issuer=b"new")], b"new", NOW + SPREAD)
    assert (rotation.may_issue(NOW + SPREAD), rotation.may_drop(NOW + 2 * SPREAD)) == (True, False)
    rotation.look([held(), held()], b"new", NOW + SPREAD)
    assert not rotation.may_drop(NOW + 2 * SPREAD - timedelta(seconds=1))
    assert rotation.may_drop(NOW + 2 * SPREAD)
