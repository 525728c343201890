"""API keys: who is let in, to which models, how often; the same at every door."""

import hashlib
import json

import grpc
import pytest
from grpc import aio

from dormouse_api.status import CallError, retry_after_s
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.key_files import BadKeyFile, read_key
from dormouse_gateway.clients.keys import ANYBODY, Keyring
from dormouse_gateway.testing.workers import deployment
from tests.gateway.kit import ask, refusal_of, tokens_of


def bearer(key):
    return (("authorization", f"Bearer {key}"),)


def write_key(directory, name, **fields):
    digest = hashlib.sha256(f"{name}-secret".encode()).hexdigest()
    (directory / name).write_text(json.dumps({"sha256": digest, **fields}))


async def refusal(keyring, metadata):
    with pytest.raises(CallError) as caught:
        async with keyring.admit(metadata):
            pass
    return caught.value


async def test_without_a_directory_everybody_is_let_in():
    async with Keyring().admit(()) as caller:
        assert caller is ANYBODY
        assert caller.may_use(deployment(), "tiny")


@pytest.mark.parametrize(
    ("metadata", "words"), [((), "no API key is given"), (bearer("b-secret"), "the API key is not known")]
)
async def test_no_key_and_a_wrong_one_are_unauthenticated(tmp_path, metadata, words):
    write_key(tmp_path, "a")
    error = await refusal(Keyring(tmp_path), metadata)
    assert (error.code, error.retry_after_s) == (grpc.StatusCode.UNAUTHENTICATED, None)
    assert words in error.message


async def test_an_empty_directory_lets_nobody_in(tmp_path):
    assert (await refusal(Keyring(tmp_path), bearer("a-secret"))).code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("models", "allowed"),
    [
        (None, {"default/tiny", "other/tiny"}),
        ([], set()),
        (["tiny"], {"default/tiny"}),
        (["other/tiny"], {"other/tiny"}),
        (["other/*"], {"other/tiny"}),
        (["*"], set()),
    ],
)
def test_a_list_of_models_names_them_as_clients_do_or_by_namespace(tmp_path, models, allowed):
    """The short name means who holds it: the one in `other` only answers to its full name."""
    write_key(tmp_path, "a", models=models)
    caller = Keyring(tmp_path).identify(bearer("a-secret"))
    holder = deployment("tiny")
    other = deployment("tiny", key=holder.key._replace(namespace="other"))
    named = {holder: "tiny", other: "other/tiny"}
    assert {each.full_name for each, name in named.items() if caller.may_use(each, name)} == allowed


async def test_a_key_runs_so_many_requests_at_once_and_each_end_makes_room(tmp_path):
    write_key(tmp_path, "a", max_concurrent=1)
    write_key(tmp_path, "b", max_concurrent=1)
    keyring = Keyring(tmp_path)
    async with keyring.admit(bearer("a-secret")):
        error = await refusal(keyring, bearer("a-secret"))
        assert (error.code, error.retry_after_s) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1.0)
        assert error.message == "the API key a may run 1 requests at the same time"
        async with keyring.admit(bearer("b-secret")):
            assert repr(keyring) == "Keyring(a: 1, b: 1)"
    async with keyring.admit(bearer("a-secret")):
        pass


async def test_a_reload_adds_changes_and_revokes_and_keeps_what_is_broken_as_it_was(tmp_path, caplog):
    for name in ("changed", "gone", "broken"):
        write_key(tmp_path, name)
    (tmp_path / "..data").mkdir()
    keyring = Keyring(tmp_path)
    write_key(tmp_path, "new")
    write_key(tmp_path, "changed", models=["tiny"])
    (tmp_path / "gone").unlink()
    (tmp_path / "broken").write_text("{")
    keyring.reload()
    assert keyring.identify(bearer("new-secret")).key.name == "new"
    assert keyring.identify(bearer("changed-secret")).key.models == {"tiny"}
    assert keyring.identify(bearer("broken-secret")).key.name == "broken"
    assert (await refusal(keyring, bearer("gone-secret"))).code is grpc.StatusCode.UNAUTHENTICATED
    assert "the API key broken stays as it was" in caplog.text


async def test_a_reload_forgets_no_request_that_runs(tmp_path):
    write_key(tmp_path, "a", max_concurrent=1)
    keyring = Keyring(tmp_path)
    async with keyring.admit(bearer("a-secret")):
        keyring.reload()
        assert (await refusal(keyring, bearer("a-secret"))).code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_file_that_cannot_be_read_now_keeps_its_key_and_no_other_from_what_changed(tmp_path):
    for name in ("a", "b", "gone"):
        write_key(tmp_path, name)
    keyring = Keyring(tmp_path)
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    write_key(tmp_path, "b", models=["tiny"])
    (tmp_path / "gone").unlink()
    with pytest.raises(IsADirectoryError):
        keyring.reload()
    assert keyring.identify(bearer("a-secret")).key.name == "a"
    assert keyring.identify(bearer("b-secret")).key.models == {"tiny"}
    with pytest.raises(CallError, match="not known"):
        keyring.identify(bearer("gone-secret"))


def test_a_directory_that_goes_away_leaves_the_keys_as_they_were(tmp_path):
    directory = tmp_path / "keys"
    directory.mkdir()
    write_key(directory, "a")
    keyring = Keyring(directory)
    (directory / "a").unlink()
    directory.rmdir()
    with pytest.raises(FileNotFoundError):
        keyring.reload()
    assert keyring.identify(bearer("a-secret")).key.name == "a"


DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "no JSON"),
        ("[]", "list"),
        ("{}", "sha256"),
        ({"sha256": "short"}, "sha256"),
        ({"sha256": DIGEST, "model": []}, "'model' is no field"),
        ({"sha256": DIGEST, "models": "tiny"}, "models is 'tiny'"),
        ({"sha256": DIGEST, "requests_per_minute": 0}, "requests_per_minute is 0"),
        ({"sha256": DIGEST, "max_concurrent": True}, "max_concurrent is True"),
    ],
)
def test_a_bad_file_names_itself_the_field_and_what_is_allowed(tmp_path, content, words):
    (tmp_path / "team-a").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BadKeyFile, match="team-a") as caught:
        read_key(tmp_path / "team-a")
    assert words in str(caught.value)


def test_a_key_never_shows_its_digest(tmp_path):
    write_key(tmp_path, "a", models=["tiny"], requests_per_minute=1)
    assert repr(read_key(tmp_path / "a")) == "ApiKey(a, models=['tiny'], 1/min, None at once)"


async def test_grpc_asks_for_the_key_and_lists_only_its_models(make_house, workers, tmp_path):
    write_key(tmp_path, "a", models=["tiny"], max_concurrent=1)
    async with make_house(api_keys_dir=tmp_path) as house:
        await house.add("tiny", workers[:1])
        await house.add("secret", workers[1:])
        refused = await refusal_of(ask(house))
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
        refused = await refusal_of(ask(house, model="secret", metadata=aio.Metadata(*bearer("a-secret"))))
        assert refused.code() is grpc.StatusCode.NOT_FOUND
        assert refused.details() == "no model is called 'secret'; known models: tiny"
        workers[0].is_gated = True
        call = ask(house, metadata=aio.Metadata(*bearer("a-secret")))
        await call.read()
        refused = await refusal_of(ask(house, metadata=aio.Metadata(*bearer("a-secret"))))
        assert (refused.code(), retry_after_s(refused)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1.0)
        workers[0].gate.set()
        assert await tokens_of(call) == [2, 3]
        assert workers[0].seen[0].values("authorization") == []
        metrics = house.gateway.metrics
        assert metrics.value("dormouse_rejected_total", reason="unauthenticated") == 1
        assert metrics.value("dormouse_rejected_total", reason="key_limit") == 1


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:10.0.0.1:5000", "at 10.0.0.1"),
        ("http:10.0.0.1:6000", "at 10.0.0.1"),
        ("http:::ffff:10.0.0.1:6000", "at 10.0.0.1"),
        ("ipv6:%5Bfd00::1%5D:5000", "at fd00::1"),
        ("http:fd00:0:0::1:6000", "at fd00::1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "at fe80::1"),
        ("http:testclient:50000", "at testclient"),
        ("unix:", "at unix:"),
        ("http:", "at http:"),
        ("", "at "),
    ],
)
def test_where_no_keys_are_asked_for_a_caller_is_the_address_from_which_it_calls(peer, name):
    assert ANYBODY.name(peer) == name


def test_a_caller_with_a_key_is_the_keys_name_wherever_it_calls_from_and_however_often_the_key_changes(tmp_path):
    write_key(tmp_path, "a")
    keyring = Keyring(tmp_path)
    names = {keyring.identify(bearer("a-secret")).name(peer) for peer in ("ipv4:10.0.0.1:5000", "http:10.0.0.2:6000")}
    (tmp_path / "a").write_text(json.dumps({"sha256": hashlib.sha256(b"renewed").hexdigest()}))
    keyring.reload()
    assert names | {keyring.identify(bearer("renewed")).name("")} == {"key a"}


async def called(house, worker, *metadata):
    """Send a request; return what the worker is told of the caller, and the salt."""
    await tokens_of(ask(house, metadata=aio.Metadata(*metadata)))
    told = worker.seen[-1]
    return [*told.values("dormouse-caller"), *told.values("dormouse-cache-salt")]


async def test_one_client_that_sends_many_bearers_is_one_caller_where_no_keys_are_asked_for(house, workers):
    await house.add("tiny", workers[:1])
    told = [await called(house, workers[0], *bearer(key)) for key in ("one", "another")]
    assert len({caller for caller, _ in told}) == 1
    assert len({salt for _, salt in told}) == 2, "who shares cached prefixes is another matter"
    pretended = (("dormouse-caller", "somebody"), ("x-forwarded-for", "10.1.1.1"))
    assert await called(house, workers[0], *pretended) == [told[0][0]]


async def test_where_keys_are_asked_for_each_key_is_one_caller(make_house, workers, tmp_path):
    for name in ("a", "b"):
        write_key(tmp_path, name)
    async with make_house(api_keys_dir=tmp_path) as house:
        await house.add("tiny", workers[:1])
        first, second, again = [await called(house, workers[0], *bearer(f"{name}-secret")) for name in "aba"]
        assert first == again
        assert first[0] != second[0]


async def test_every_method_asks_for_the_key(make_house, workers, tmp_path):
    async with make_house(api_keys_dir=tmp_path) as house:
        await house.add("tiny", workers[:1])
        for call in (
            house.stub.Tokenize(pb.TokenizeRequest(model="tiny", text="a")),
            house.stub.Detokenize(pb.DetokenizeRequest(model="tiny")),
            house.stub.GetModel(pb.GetModelRequest(model="tiny")),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert workers[0].seen == []
