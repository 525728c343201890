"""How the engine process is started: argument list, settings on standard input, what it prints and logs passed on."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.start import EngineStart
from dormouse_worker.front.sides import Spawn, SpawnFor

ENGINE_ARGV: tuple[str, ...] = (sys.executable, "-m", "dormouse_worker.engine_process")
VLLM_LAUNCHER = Path(__file__).parents[2] / "foreign" / "vllm" / "launch.py"
# How long to read on after the end. Ranks of a killed engine hold the pipe, and their devices, until they are gone,
# too: nobody else may be given these before. What outlives the engine for other reasons is not waited for longer.
LAST_WORDS_S = 5.0
MAX_LINE_BYTES = 1 << 16


class SubprocessEngine:
    """A child process; implements `EngineProcess`. What it says goes out as ours; its last line is kept."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last_line = ""
        self._reading = asyncio.gather(self._read_stdout(), self._copy_stderr())

    def __repr__(self) -> str:
        return f"SubprocessEngine(pid={self._process.pid}, exit_code={self._process.returncode})"

    async def wait(self) -> int:
        """See `EngineProcess`; the last words are complete, and ranks are gone, when this returns."""
        exit_code = await self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._reading
        return exit_code

    def kill(self) -> None:
        """See `EngineProcess`."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def last_words(self) -> str:
        """See `EngineProcess`."""
        return self._last_line

    async def _read_stdout(self) -> None:
        assert self._process.stdout is not None, "started with a pipe"
        while data := await self._process.stdout.read(MAX_LINE_BYTES):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    async def _copy_stderr(self) -> None:
        assert self._process.stderr is not None, "started with a pipe"
        rest = b""
        while data := await self._process.stderr.read(MAX_LINE_BYTES):
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
            lines = (rest + data)[-MAX_LINE_BYTES:].split(b"\n")
            rest = lines[-1]
            words = [line for line in lines if line.strip()]
            if words:
                self._last_line = words[-1].decode(errors="replace").strip()


def subprocess_spawner(argv: Sequence[str], environ: Mapping[str, str]) -> SpawnFor:
    """Return what starts `argv --socket PATH` with the settings as JSON on standard input."""

    def spawn_for(settings: EngineSettings) -> Spawn:
        return lambda socket_path: spawn(settings, socket_path)

    async def spawn(settings: EngineSettings, socket_path: Path) -> SubprocessEngine:
        process = await _start([*argv, "--socket", str(socket_path)], environ)
        hand_over(process, msgspec.json.encode(settings))
        return SubprocessEngine(process)

    return spawn_for


def runtime_spawner(spawners: Mapping[str, SpawnFor]) -> SpawnFor:
    """Return what starts the engine of the runtime that the settings name."""
    return lambda settings: spawners[settings.runtime](settings)


def vllm_argv(engine_python: str) -> tuple[str, ...]:
    """Return the command of an engine of vLLM's. -P: where the launcher lies nobody's modules are looked for."""
    return (engine_python or sys.executable, "-P", str(VLLM_LAUNCHER))


class WaitingEngine(SubprocessEngine):
    """A child process that imports what engines with some settings need, and waits to be told where to serve."""

    @property
    def is_alive(self) -> bool:
        """Return whether it has not ended, as far as is known."""
        return self._process.returncode is None

    def begin(self, start: EngineStart) -> None:
        """Have it connect and serve. Once; one that has ended by now is told nothing."""
        hand_over(self._process, msgspec.json.encode(start))


async def spawn_waiting(argv: Sequence[str], environ: Mapping[str, str], settings: EngineSettings) -> WaitingEngine:
    """Start `argv --wait`, which reads these settings as a line, and the start as the rest of its standard input."""
    process = await _start([*argv, "--wait"], environ)
    assert process.stdin is not None, "started with a pipe"
    with contextlib.suppress(OSError, RuntimeError):
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
    return WaitingEngine(process)


async def _start(argv: Sequence[str], environ: Mapping[str, str]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environ))
    except OSError as error:  # uvloop's does not say what is missing
        raise OSError(error.errno, error.strerror, argv[0]) from error


def hand_over(process: asyncio.subprocess.Process, words: bytes) -> None:
    """Write to a process that was just started, and no more after that. One that has ended by now is told nothing."""
    assert process.stdin is not None, "started with a pipe"
    with contextlib.suppress(OSError, RuntimeError):  # uvloop's, of a pipe that it has closed
        process.stdin.write(words)
        process.stdin.close()
