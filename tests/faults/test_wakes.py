"""A request that waits wakes its model: gateway and operator as processes, the gateway without a right to write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dormouse_api.testing_tickets import GATEWAY_SEED
from tests.faults.gateway_process import GatewayProcess
from tests.faults.programs import clean_environment
from tests.faults.world import World
from tests.ports import free_port

# A model that is asleep with these sleeps on; once it was woken it stays awake until everybody has seen it.
SLEEPLESS = {"level1AfterSeconds": 1000, "minActiveSeconds": 0, "holdTimeoutSeconds": 100}
SLEEPY = {"level1AfterSeconds": 1, "minActiveSeconds": 0, "holdTimeoutSeconds": 100}


def directed(world: World, **settings: object) -> dict[str, Any]:
    """Return the environment of a gateway of the world."""
    tokens = world.folder / "gateway-tokens"
    tokens.mkdir(exist_ok=True)
    (tokens / "gateway-seed").write_text(GATEWAY_SEED)
    given = {
        "KUBECONFIG": world.plane.kubeconfig("gateway"),
        "DORMOUSE_WATCH_NAMESPACES": world.namespace,
        "DORMOUSE_HOST": "127.0.0.1",
        "DORMOUSE_POD_IPS": "127.0.0.1",
        "DORMOUSE_TOKENS_DIR": tokens,
        "DORMOUSE_LAME_DUCK": 0,
        **{f"DORMOUSE_{name}PORT": free_port() for name in ("", "HTTP_", "METRICS_", "CONTROL_")},
    }
    return given | settings


@asynccontextmanager
async def gateway_of(world: World, env: dict[str, Any]) -> AsyncIterator[GatewayProcess]:
    """Yield a gateway that serves."""
    gateway = GatewayProcess(clean_environment(**env), Path(world.folder / "gateway.log"), ())
    try:
        await world.eventually(gateway.is_ready)
        yield gateway
    finally:
        await asyncio.to_thread(gateway.program.end)


async def is_woken(world: World, name: str) -> None:
    """Wait until the operator has decided to wake the model."""
    await world.until(lambda: world.status(name)["lifecycle"]["rung"] == "Active")
    assert world.status(name)["lifecycle"]["reason"] == "request"


async def test_a_request_that_waits_wakes_and_the_gateway_writes_nothing(world: World) -> None:
    env = directed(world)
    async with (
        gateway_of(world, env) as gateway,
        gateway.client() as client,
        world.operator(gateway_control=f"127.0.0.1:{env['DORMOUSE_CONTROL_PORT']}"),
    ):
        await world.apply("m", lifecycle=SLEEPY)
        for _ in range(2):
            await world.until(lambda: world.status("m").get("phase") == "Asleep")
            call = client.ask("m")
            assert dict(await call.initial_metadata())["dormouse-held"] == "true"
            await is_woken(world, "m")
            call.cancel()
    assert world.writes(user="gateway") == []


async def test_a_request_that_waits_while_the_operator_is_started_again_wakes(world: World) -> None:
    env = directed(world)
    where = {"gateway_control": f"127.0.0.1:{env['DORMOUSE_CONTROL_PORT']}"}
    async with gateway_of(world, env) as gateway, gateway.client() as client:
        async with world.operator(**where):
            await world.apply("m", lifecycle=SLEEPY)
            await world.until(lambda: world.status("m").get("phase") == "Asleep")
        stays, goes = client.ask("m"), client.ask("m")
        for call in (stays, goes):
            assert dict(await call.initial_metadata())["dormouse-held"] == "true"
        goes.cancel()
        async with world.operator(**where):
            await is_woken(world, "m")
        stays.cancel()
    assert world.writes(user="gateway") == []


async def test_a_request_that_gave_up_while_there_was_no_operator_wakes_all_the_same(world: World) -> None:
    env = directed(world)
    where = {"gateway_control": f"127.0.0.1:{env['DORMOUSE_CONTROL_PORT']}"}
    async with gateway_of(world, env) as gateway, gateway.client() as client:
        async with world.operator(**where):
            await world.apply("m", lifecycle=SLEEPY)
            await world.until(lambda: world.status("m").get("phase") == "Asleep")
        call = client.ask("m")
        assert dict(await call.initial_metadata())["dormouse-held"] == "true"
        call.cancel()

        async def is_gone() -> bool:
            return await gateway.held() == 0

        await world.eventually(is_gone)
        await world.apply("m", lifecycle=SLEEPLESS)
        async with world.operator(**where):
            await is_woken(world, "m")
