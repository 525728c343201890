"""Who a certificate says that its holder is, and what that one may call: every arrow, allowed and forbidden."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.identity import BadIdentity, Identity, identity_among, parse_identity, refusal, server_name
from dormouse_api.names import (
    CONTROL_SERVICE,
    GATEWAY_CONTROL_SERVICE,
    INFERENCE_SERVICE,
    KV_BLOCKS_SERVICE,
    RELAY_SERVICE,
    Role,
)

HEALTH = "grpc.health.v1.Health"
WORKER = Identity(Role.WORKER, "team", "tiny")
GATEWAY = Identity(Role.GATEWAY, "system", "r")
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)


@given(st.builds(Identity, st.sampled_from(Role), NAMES, NAMES))
def test_what_is_written_is_read_back(identity):
    assert parse_identity(str(identity)) == identity


def test_an_identity_is_a_uri_with_role_namespace_and_name():
    assert str(WORKER) == "dormouse://worker/team/tiny"


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("", "no identity"),
        ("spiffe://worker/team/tiny", "no identity"),
        ("dormouse://worker/team", "no identity"),
        ("dormouse://worker/team/tiny/more", "no identity"),
        ("dormouse://root/team/tiny", "the role is 'root'; allowed are client, gateway, operator, worker"),
        ("dormouse://worker//tiny", "namespace is ''"),
        ("dormouse://worker/team/", "name is ''"),
        ("dormouse://worker/Team/tiny", "namespace is 'Team'"),
        ("dormouse://worker/team/" + "a" * 254, "name is 'aaa"),
        ("dormouse://worker/team/tiny\n", "name is 'tiny"),
    ],
)
def test_what_is_no_identity_is_refused_with_what_is_allowed(uri, words):
    with pytest.raises(BadIdentity, match=words):
        parse_identity(uri)


def test_a_certificate_names_exactly_one_identity():
    assert identity_among(["worker.dormouse.internal", str(WORKER), "https://x/"]) == WORKER
    with pytest.raises(BadIdentity, match="names 0 identities"):
        identity_among(["worker.dormouse.internal"])
    with pytest.raises(BadIdentity, match="names 2 identities"):
        identity_among([str(WORKER), str(GATEWAY)])


@pytest.mark.parametrize(
    ("service", "own", "allowed"),
    [
        (CONTROL_SERVICE, WORKER, {Role.OPERATOR}),
        (INFERENCE_SERVICE, WORKER, {Role.GATEWAY, Role.CLIENT}),
        (RELAY_SERVICE, WORKER, {Role.GATEWAY}),
        (GATEWAY_CONTROL_SERVICE, GATEWAY, {Role.OPERATOR}),
        (KV_BLOCKS_SERVICE, WORKER, {Role.WORKER}),
        (HEALTH, WORKER, {Role.OPERATOR, Role.GATEWAY, Role.CLIENT}),
    ],
)
@pytest.mark.parametrize("role", Role)
def test_each_arrow_is_open_to_its_roles_only(service, own, allowed, role):
    caller = Identity(role, own.namespace, "tiny")
    words = refusal(service, caller, own)
    assert bool(words) == (role not in allowed)
    assert not words or str(caller) in words


def test_clients_reach_the_workers_of_their_own_namespace_only():
    assert not refusal(INFERENCE_SERVICE, Identity(Role.CLIENT, "team", "app"), WORKER)
    words = refusal(INFERENCE_SERVICE, Identity(Role.CLIENT, "other", "app"), WORKER)
    assert words == (
        "dormouse.v1.Inference is open to clients of the namespace team; this caller is dormouse://client/other/app"
    )


@pytest.mark.parametrize("other", [Identity(Role.WORKER, "team", "large"), Identity(Role.WORKER, "other", "tiny")])
def test_workers_reach_those_of_their_own_deployment_only(other):
    assert not refusal(KV_BLOCKS_SERVICE, WORKER, WORKER)
    assert refusal(KV_BLOCKS_SERVICE, other, WORKER) == (
        f"dormouse.v1.KvBlocks is open to workers of dormouse://worker/team/tiny; this caller is {other}"
    )


def test_each_role_has_a_name_of_its_own_to_be_asked_for():
    assert len({server_name(role) for role in Role}) == len(Role)
    assert server_name(Role.WORKER) == "worker.dormouse.internal"
