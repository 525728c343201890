"""What a real Envoy that asks our picker is refused, and who is let in to workers' own HTTP ports."""

import asyncio
import io
import json

import pytest

from tests.gateway.picker.conftest import CHAT, DUPLEX, HI


async def test_a_body_that_does_not_come_is_refused_after_its_time(make_town):
    async with make_town(1, http_timeout_s=0.3) as town, town.envoy() as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n".encode()
        )
        assert b"408" in await reader.readline()
        writer.close()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({**HI, "model": "nope"}, 404, "no model is called 'nope'; known models: tiny"),
        ({**HI, "temperature": "hot"}, 400, "temperature"),
        ({"model": "tiny"}, 400, "messages"),
    ],
)
async def test_what_cannot_be_served_is_refused_in_our_words_and_reaches_no_worker(town, body, status, words):
    async with town.envoy(**DUPLEX) as url:
        answer = await town.ask(url, body)
    assert answer[0] == status
    assert words in answer[1]["error"]["message"]
    assert not any(worker.seen for worker in town.workers)
    assert town.is_quiet()


async def test_a_body_over_the_limit_is_refused(town):
    raw = json.dumps({**HI, "messages": [{"role": "user", "content": "a" * (2 << 20)}]}).encode()
    async with (
        town.envoy(**DUPLEX) as url,
        town.session.post(url + CHAT, data=io.BytesIO(raw), headers={"content-type": "application/json"}) as response,
    ):
        assert response.status == 413
        assert "limit" in await response.text()
    assert town.is_quiet()


async def test_ten_thousand_headers_are_refused(town):
    async with town.envoy(num_headers=20_000, headers_kb=1000) as url:
        status, answer = await town.ask(url, headers={f"x-{number}": "a" for number in range(10_000)})
    assert status == 431
    assert "the headers have" in answer["error"]["message"]


async def test_a_worker_that_is_full_is_429_and_a_model_that_is_off_503(make_town):
    async with make_town(1, spec={"lifecycle": {"desiredState": "Asleep"}}) as town, town.envoy() as url:
        town.sleep()
        async with town.session.post(url + CHAT, json=HI) as response:
            assert (response.status, response.headers["retry-after"]) == (503, "30")
            assert "spec.lifecycle.desiredState is Asleep" in await response.text()


async def test_models_are_listed_and_other_paths_refused_without_a_worker(town):
    async with town.envoy() as url:
        async with town.session.get(f"{url}/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["tiny"]
        assert (await town.ask(url, path="/v1/nothing"))[0] == 404
    assert not any(worker.seen for worker in town.workers)


async def test_a_model_that_is_not_offered_to_other_gateways_says_so(make_town):
    async with make_town(1, offered=False) as town, town.envoy() as url:
        status, answer = await town.ask(url)
    assert status == 400
    assert "spec.serving.inferencePool is not true" in answer["error"]["message"]


async def test_without_a_known_key_nothing_is_read_and_with_one_its_limits_hold(make_town, tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    digest = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"  # of "key"
    (keys / "team").write_text(json.dumps({"sha256": digest, "requests_per_minute": 1}))
    async with make_town(1, api_keys_dir=keys) as town, town.envoy() as url:
        assert (await town.ask(url))[0] == 401
        bearer = {"authorization": "Bearer key"}
        assert (await town.ask(url, headers=bearer))[0] == 200
        assert (await town.ask(url, headers=bearer))[0] == 429
        seen = town.workers[0].seen[0]
    assert seen.values("dormouse-cache-salt")
    assert not seen.values("authorization")


async def test_what_a_client_says_in_our_name_reaches_no_worker(town):
    async with town.envoy() as url:
        pretended = {
            "dormouse-ticket": "stolen",
            "dormouse-cache-salt": "x",
            "x-gateway-destination-endpoint": "1.2.3.4:5",
        }
        assert (await town.ask(url, headers=pretended))[0] == 200
    (seen,) = [seen for worker in town.workers for seen in worker.seen]
    assert seen.values("dormouse-cache-salt") == []
    assert "stolen" not in seen.values("dormouse-ticket")


async def test_past_the_picker_a_workers_port_serves_nobody(town):
    status, answer = await town.ask(f"http://127.0.0.1:{town.http_ports[0]}")
    assert status == 401
    assert "endpoint picker" in answer["error"]["message"]


async def test_without_a_picker_a_closed_pool_serves_nobody_and_an_open_one_everybody(make_town):
    async with make_town(fails_open=True) as town:
        async with town.envoy(pickers=[1], fallback=town.http_ports) as url:
            assert (await town.ask(url))[0] >= 500
        async with town.envoy(pickers=[1], fallback=town.http_ports, fails_open=True) as url:
            assert [(await town.ask(url))[0] for _ in range(4)] == [200] * 4
    assert all(worker.seen for worker in town.workers)
