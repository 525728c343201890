"""Real workers that are killed, and put to sleep, under a real gateway's requests. F15 and F22 of the fault matrix.

Which other tests these rows have says docs/design/faults.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dormouse_api.testing_tickets import GATEWAY_SEED
from dormouse_api.v1 import worker_control_pb2 as control
from tests.faults.gateway_process import Client
from tests.faults.real_worker import real_worker
from tests.faults.town import Town
from tests.gateway.kit import tokens_of
from tests.integration.conftest import EPOCH
from tests.integration.crawling import CRAWLING, crawling, own_copy
from tests.ports import free_port

pytestmark = pytest.mark.slow

NUM_TOKENS = 80


def ask(client: Client, number: int, **how: Any) -> Any:
    """Begin one of several requests whose answers are always the same, and each another."""
    sampling = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}  # what is drawn depends on the batch
    return client.ask("tiny", text=f"Once upon a time there were {number}", sampling=sampling, **how)


async def whole_answers(client: Client, count: int) -> list[list[int]]:
    """Return what is said while nothing happens."""
    answers = await asyncio.gather(*(tokens_of(ask(client, number)) for number in range(count)))
    assert [len(tokens) for tokens in answers] == [NUM_TOKENS] * count
    return answers


def tokens(folder: Path) -> Path:
    """Write what the key comes from by which a gateway proves its role: workers let nobody else continue a stream."""
    made = folder / "tokens"
    made.mkdir()
    (made / "gateway-seed").write_text(GATEWAY_SEED)
    return made


async def test_streams_of_a_worker_that_is_killed_go_on_without_a_wrong_token(
    town: Town, tiny_model: Path, tmp_path: Path
) -> None:
    """F15: two workers, twelve greedy streams, SIGKILL of one worker once each stream has begun."""
    ports = free_port(), free_port()
    await town.model("tiny", *(f"127.0.0.1:{port}" for port in ports))
    uids = await town.uid_of("tiny-0"), await town.uid_of("tiny-1")
    models = [own_copy(tiny_model, tmp_path / name) for name in ("a", "b")]
    async with (
        real_worker(models[0], tmp_path / "a.log", *CRAWLING, pod_uid=uids[0], port=ports[0]) as one,
        real_worker(models[1], tmp_path / "b.log", *CRAWLING, pod_uid=uids[1], port=ports[1]) as other,
    ):
        await asyncio.gather(asyncio.to_thread(one.start), asyncio.to_thread(other.start))
        async with (
            town.gateway(router_policy="round-robin", tokens_dir=tokens(tmp_path)) as gateway,
            gateway.client() as client,
        ):
            expected = await whole_answers(client, 12)
            with crawling(*models):
                calls = [ask(client, number) for number in range(12)]
                begun = [list((await call.read()).token_ids) for call in calls]
                one.process.kill()
            rest = await asyncio.gather(*map(tokens_of, calls))
            assert [first + more for first, more in zip(begun, rest, strict=True)] == expected
            assert await gateway.metric("dormouse_migrated_total", outcome="done") > 0


async def test_requests_that_run_or_arrive_while_their_worker_goes_to_sleep_are_all_answered(
    town: Town, tiny_model: Path, tmp_path: Path
) -> None:
    """F22: what runs ends first; what arrives is answered before the sleep, or held, wakes the worker, is answered."""
    async with real_worker(tiny_model, tmp_path / "worker.log") as worker:
        await asyncio.to_thread(worker.start)
        await town.model("tiny", f"127.0.0.1:{worker.port}")
        async with town.gateway() as gateway, gateway.client() as client:
            expected = await whole_answers(client, 12)
            running = [ask(client, number) for number in range(4)]
            begun = [list((await call.read()).token_ids) for call in running]
            sleeping = asyncio.create_task(
                asyncio.to_thread(worker.operate, "Sleep", control.SleepRequest(epoch=EPOCH, level=1))
            )
            arriving = [ask(client, number) for number in range(4, 11)]
            status: Any = await sleeping
            assert status.state == control.WORKER_STATE_ASLEEP
            late = ask(client, 11)
            assert dict(await late.initial_metadata())["dormouse-held"] == "true"
            await asyncio.to_thread(worker.operate, "WakeUp", control.WakeUpRequest(epoch=EPOCH))
            rest = await asyncio.gather(*map(tokens_of, [*running, *arriving, late]))
            answers = [first + more for first, more in zip(begun, rest[:4], strict=True)] + rest[4:]
            assert answers == expected
