"""Requests through a real Envoy that asks our picker, to workers' own HTTP ports."""

import asyncio
import json

import aiohttp
import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import public_key
from dormouse_api.tickets import TicketCheck, public_check
from dormouse_gateway.openai.testing import WORDS
from dormouse_gateway.settings import Settings
from dormouse_kube.api import PODS
from tests.gateway.picker.conftest import CHAT, DUPLEX, HI, KEY
from tests.waiting import until

KNOWN = {Role.GATEWAY: [public_check(public_key(Role.GATEWAY))]}
MODES = [{}, DUPLEX, {"response_body_mode": "NONE"}]
LONG = "a" * 200_000  # several parts of what Envoy takes at once


@pytest.mark.parametrize("modes", MODES, ids=["buffered", "duplex", "no-response-body"])
async def test_a_request_goes_to_a_worker_and_is_given_back(town, modes):
    async with town.envoy(**modes) as url:
        for body in (HI, {**HI, "messages": [{"role": "user", "content": LONG}]}):
            status, answer = await town.ask(url, body)
            assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hello dormouse")
        await until(town.is_quiet)
    (seen, *_) = [seen for worker in town.workers for seen in worker.seen]
    assert TicketCheck(["uid-0", "uid-1"], KNOWN).role_of(seen.metadata) is Role.GATEWAY
    assert len(seen.values("dormouse-caller")) == 1


async def test_an_envoy_that_wants_tls_of_every_picker_gets_it(make_town):
    async with make_town(picker_self_signed=True) as town:
        async with town.envoy(**DUPLEX, picker_tls=True) as url:
            assert (await town.ask(url))[0] == 200
        async with town.envoy(**DUPLEX) as url:
            assert (await town.ask(url))[0] == 500, "nothing else is spoken there"
    assert Settings.from_env({"DORMOUSE_PICKER_SELF_SIGNED": "true"}).picker_self_signed


@pytest.mark.parametrize("modes", MODES, ids=["buffered", "duplex", "no-response-body"])
async def test_a_long_answer_comes_whole_also_where_the_picker_hangs_up_before_its_end(town, modes):
    for worker in town.workers:
        worker.tokens = 100 * (8,)  # 400 KB of text
    async with town.envoy(**modes) as url:
        answers = await asyncio.gather(*(town.ask(url) for _ in range(20)))
        await until(town.is_quiet)
    assert {status for status, _ in answers} == {200}
    assert {answer["choices"][0]["message"]["content"] for _, answer in answers} == {100 * WORDS[8]}


@pytest.mark.parametrize("modes", MODES[:2], ids=["buffered", "duplex"])
async def test_a_stream_is_passed_on_event_by_event_and_counts_until_its_end(town, modes):
    for worker in town.workers:
        worker.is_gated = True
    async with (
        town.envoy(**modes) as url,
        town.session.post(url + CHAT, json={**HI, "stream": True}) as response,
    ):
        assert response.headers["dormouse-start"] == "warm"
        await response.content.readuntil(b"Hello")
        assert town.house.outstanding() == 1
        for worker in town.workers:
            worker.gate.set()
        assert b"[DONE]" in await response.content.read()
        await until(town.is_quiet)


@pytest.mark.parametrize("modes", MODES[:2], ids=["buffered", "duplex"])
async def test_names_that_workers_do_not_know_are_replaced_in_the_body(town, modes):
    body = {**HI, "model": "default/tiny", "max_tokens": 2}
    async with town.envoy(**modes) as url:
        status, answer = await town.ask(url, body)
    assert (status, answer["model"]) == (200, "tiny")
    (seen,) = [seen for worker in town.workers for seen in worker.seen]
    assert (seen.request.model, seen.request.sampling_params.max_tokens) == ("tiny", 2)


async def test_prompts_that_begin_alike_go_to_one_worker(town):
    bodies = [{**HI, "messages": [{"role": "user", "content": f"{letter * 100}"}]} for letter in "abcdefgh"]
    async with town.envoy() as url:
        for body in [*bodies, *bodies]:
            assert (await town.ask(url, body))[0] == 200
    texts = [[seen.request.chat.messages[0].content for seen in worker.seen] for worker in town.workers]
    assert not set(texts[0]) & set(texts[1])
    assert all(texts)


@pytest.mark.parametrize(
    "modes", [{}, {**DUPLEX, "more": {"max_message_timeout": None}}], ids=["buffered", "duplex-and-no-more-patience"]
)
async def test_a_request_for_a_sleeping_model_is_held_longer_than_envoy_waits_by_itself(town, modes):
    """Where gateways let Envoy wait no longer when asked, they give bodies away: then its patience has no end."""
    town.sleep()
    async with town.envoy(message_timeout_s=0.3, **modes) as url:
        asked = asyncio.create_task(town.ask(url))
        await until(lambda: town.router.activity.activity(KEY).is_wanted)
        await asyncio.sleep(0.6)  # beyond Envoy's own patience: the time is what is tested
        town.workers[1].tell_load(ready=True)
        status, answer = await asked
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hello dormouse")
    assert town.workers[1].seen
    assert not town.workers[0].seen


async def test_a_client_that_goes_while_its_request_is_held_waits_no_longer(town):
    town.sleep()
    async with town.envoy() as url:
        asked = asyncio.create_task(town.ask(url))
        await until(lambda: town.router.activity.activity(KEY).held)
        asked.cancel()
        await until(town.is_quiet)


async def test_a_client_that_goes_in_mid_stream_gives_its_worker_back(town):
    for worker in town.workers:
        worker.is_gated = True
    async with town.envoy() as url:
        async with town.session.post(url + CHAT, json={**HI, "stream": True}) as response:
            await response.content.readuntil(b"Hello")
            response.close()
        await until(town.is_quiet)


async def test_a_client_that_goes_with_half_a_body_leaves_nothing(town):
    async with town.envoy() as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
        writer.write(head.encode() + b'{"model": "tiny", ')
        await writer.drain()
        await until(lambda: town.house.gateway.picker_taken == 1)
        writer.close()
        await until(lambda: counted(town, "CANCELLED") == 1)
        await until(town.is_quiet)


async def test_a_key_that_is_revoked_ends_what_waits_and_what_runs_under_it(make_town, tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    digest = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"  # of "key"
    (keys / "team").write_text(json.dumps({"sha256": digest}))
    bearer = {"authorization": "Bearer key"}
    async with make_town(1, api_keys_dir=keys, reload_interval_s=0.1) as town, town.envoy() as url:
        town.workers[0].is_gated = True
        async with town.session.post(url + CHAT, json={**HI, "stream": True}, headers=bearer) as response:
            await response.content.readuntil(b"Hello")
            town.sleep()
            held = asyncio.create_task(town.ask(url, headers=bearer))
            await until(lambda: town.router.activity.activity(KEY).held)
            (keys / "team").unlink()
            assert (await held)[0] == 401
            with pytest.raises(aiohttp.ClientError):
                await response.content.read()
        await until(town.is_quiet)


async def test_a_gateway_that_ends_sees_its_streams_through(town):
    for worker in town.workers:
        worker.is_gated = True
    async with (
        town.envoy() as url,
        town.session.post(url + CHAT, json={**HI, "stream": True}) as response,
    ):
        await response.content.readuntil(b"Hello")
        town.house.stop.set()
        await until(lambda: "ready=False" in repr(town.house.gateway))
        for worker in town.workers:
            worker.gate.set()
        assert b"[DONE]" in await response.content.read()
        await town.house.running


async def test_a_worker_that_goes_away_is_left_out_until_it_is_back(town):
    await town.workers[0].stop()
    async with town.envoy() as url:
        assert [(await town.ask(url))[0] for _ in range(6)].count(200) >= 5
    town.house.kube.edit(PODS, "default", "tiny-w0", lambda obj: obj["status"].update(phase="Failed"))


def counted(town, code):
    samples = (
        town.house.gateway.metrics.value("dormouse_gateway_requests_total", model=model, code=code, method="Process")
        for model in ("unknown", "default/tiny")
    )
    return sum(filter(None, samples))
