"""Programs that are started by a process whose threads are in gRPC."""

from __future__ import annotations

import os
import subprocess

from tools.bootstrap import ROOT, bare_python

PROGRAM = """
import asyncio, os, threading
import dormouse_api
import grpc, uvloop

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def call():
        while True:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                try:
                    channel.unary_unary("/none/None")(b"", timeout=1)
                except grpc.RpcError:
                    pass

    for _ in range(3):
        threading.Thread(target=call, daemon=True).start()
    for _ in range(40):
        assert await (await asyncio.create_subprocess_exec("true")).wait() == 0
    print("done", flush=True)
    os._exit(0)

uvloop.run(main())
"""


def test_grpc_does_nothing_at_the_start_of_a_program():
    """Its handlers of a fork were seen to stop a worker for ever, and to end one, when it started its engine."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    env |= {"PYTHONPATH": str(ROOT / "api"), "GRPC_VERBOSITY": "info"}
    command = [bare_python(), "-c", PROGRAM]
    program = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=60)
    assert program.stdout == "done\n", program.stderr
    assert "fork() handlers" not in program.stderr
