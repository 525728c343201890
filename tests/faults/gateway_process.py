"""A gateway as a real process, and its clients: each with a connection of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from grpc import aio

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from tests.faults import metrics
from tests.faults.operator_process import ended
from tests.faults.programs import Program

ANSWER = [1, 2, 3]  # what every stand-in worker says
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class GatewayProcess:
    """`python -m dormouse_gateway`, once."""

    def __init__(self, env: Mapping[str, str], log: Path, prefix: Sequence[str]) -> None:
        """Take the environment that decides everything, and what is put before the command (`prlimit …`)."""
        self.port = int(env["DORMOUSE_PORT"])
        self.http_port = int(env["DORMOUSE_HTTP_PORT"])
        self.metrics_port = int(env["DORMOUSE_METRICS_PORT"])
        self.program = Program([*prefix, sys.executable, "-m", "dormouse_gateway"], log=log, env=env)

    def __repr__(self) -> str:
        """Show the process."""
        return f"GatewayProcess({self.program!r})"

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self.program.exit_code is None

    @property
    def memory_bytes(self) -> int:
        """Return what the process has in memory now."""
        return int(Path(f"/proc/{self.program.pid}/statm").read_text("ascii").split()[1]) * _PAGE_BYTES

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.program.signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end, as a kubelet does first (SIGTERM)."""
        self.program.signal(signal.SIGTERM)

    async def ended(self, timeout_s: float) -> int:
        """Return its exit code once it ended."""
        async with asyncio.timeout(timeout_s):
            return await ended(self.program)

    async def is_ready(self) -> bool:
        """Return whether a Service would send requests to it."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self._url("readyz")) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def held(self) -> int:
        """Return how many requests wait in it."""
        return int(await self.metric("dormouse_held_requests"))

    async def metric(self, sample: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels, 0 while the process does not answer."""
        return await metrics.read(self.metrics_port, sample, **labels)

    async def models(self) -> list[str]:
        """Return the names that the HTTP API lists."""
        url = f"http://127.0.0.1:{self.http_port}/v1/models"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return [model["id"] for model in (await answer.json())["data"]]

    def client(self) -> Client:
        """Return a client with a connection of its own."""
        return Client(self.port)

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/{path}"


class Client:
    """One gRPC connection to a gateway. Use as a context manager."""

    def __init__(self, port: int) -> None:
        """Take the gateway's port; connects with the first request."""
        apart = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_metadata_size", 64 << 10)]
        self.channel = aio.insecure_channel(f"127.0.0.1:{port}", options=apart)
        self.stub: Any = rpc.InferenceStub(self.channel)

    async def __aenter__(self) -> Client:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection; what still runs is cancelled."""
        await self.channel.close(None)

    def ask(
        self,
        model: str,
        request_id: str = "",
        *,
        text: str = "a",
        sampling: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> Any:
        """Return a Generate call that is under way."""
        params = pb.SamplingParams(**(sampling or {}))
        request = pb.GenerateRequest(model=model, text=text, request_id=request_id, sampling_params=params)
        return self.stub.Generate(request, **({"timeout": 60} | how))
