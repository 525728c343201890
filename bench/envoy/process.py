"""One Envoy as a process of ours, on ports that it chooses itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

import envoy  # type: ignore[import-untyped]  # only says where its program is
from bench.envoy.config import Wish, bootstrap

BINARY = Path(envoy.__file__).parent / "_bin" / "envoy"
_START_S = 30.0
_LOOK_S = 0.02


class EnvoyFailed(Exception):
    """It did not start; the message is what it said."""


@asynccontextmanager
async def running_envoy(wish: Wish, folder: Path) -> AsyncIterator[str]:
    """Run one; return its address, http://HOST:PORT. Its configuration and log lie in the folder."""
    config, told, log = folder / "envoy.json", folder / "admin", folder / "envoy.log"
    config.write_text(json.dumps(bootstrap(wish)), "utf-8")
    told.unlink(missing_ok=True)
    flags = ("--concurrency", "1", "--use-dynamic-base-id", "--admin-address-path", told, "--log-path", log)
    # the kernel ends it with us, however we end
    process = await asyncio.create_subprocess_exec(
        "setpriv",
        "--pdeathsig",
        "KILL",
        "--",
        BINARY,
        "-c",
        config,
        *flags,
        "-l",
        "info",
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_START_S):
            address = await _address(process, told, log)
        yield address
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _address(process: asyncio.subprocess.Process, told: Path, log: Path) -> str:
    """Return where it listens, once it does. Raises EnvoyFailed."""
    while not (admin := _said(told)):
        if process.returncode is not None:
            raise EnvoyFailed(_said(log)[-3000:])
        await asyncio.sleep(_LOOK_S)
    async with aiohttp.ClientSession() as session:
        port = 0
        while not port:
            await asyncio.sleep(_LOOK_S)
            port = _port(await _asked(session, f"http://{admin}/listeners?format=json"))
    return f"http://127.0.0.1:{port}"


def _said(file: Path) -> str:
    return file.read_text("utf-8", "replace") if file.exists() else ""


async def _asked(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as answer:
        return json.loads(await answer.text())


def _port(told: Any) -> int:
    found = [one["local_address"]["socket_address"]["port_value"] for one in told.get("listener_statuses", ())]
    return int(found[0]) if found else 0
