"""`dormouse serve`: hands over to a worker that runs alone, with OpenAI's API as a second process in front of it.

Knows which modules these need, and of the worker's flags only those that say where and under which names it serves.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dormouse_api.listening import EVERYWHERE, hold_port, listen
from dormouse_api.names import HTTP_PORT, INFERENCE_PORT
from dormouse_cli.errors import CommandFailed
from dormouse_cli.models import OnHub, cache_folder, find_model

NEEDED = (
    *("dormouse_worker", "torch", "transformers", "tokenizers", "msgspec", "jinja2", "uvloop"),
    *("huggingface_hub", "httpx2"),  # for what lies on a hub
)
NEEDED_BY_DOOR = ("dormouse_gateway", "starlette", "uvicorn", "uvloop", "prometheus_client")
# What suits a try on one's own machine; a flag that the user gives comes later and wins.
DEFAULTS = ("--standalone", "--enable-reflection", "--host", "127.0.0.1", "--control-port", "0", "--metrics-port", "0")
_LAST_PORT = 65535

Has = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Own:
    """The flags that are not the worker's."""

    http_port: int | None  # of OpenAI's API; 0 = any free one, None = no such API
    revision: str  # of a model on a hub


@dataclass(frozen=True, slots=True)
class Place:
    """Where and under which names the worker will serve, as its flags say."""

    host: str
    port: int
    names: tuple[str, ...]  # () = as the directory is called
    adapters: tuple[str, ...] = ()  # names of the LoRA adapters that it serves from the start

    @property
    def reached_at(self) -> str:
        """Return the address at which a program of this machine reaches it."""
        return "127.0.0.1" if self.host in EVERYWHERE else self.host.strip("[]")


def is_installed(module: str) -> bool:
    """Return whether the module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def check_installed(
    modules: Sequence[str], what: str, extra: str, has: Has = is_installed, *, or_else: str = ""
) -> None:
    """Raise CommandFailed naming the extra, if any of the modules is missing."""
    if missing := [module for module in modules if not has(module)]:
        remedy = f"pip install 'dormouse[{extra}]'{or_else}"
        raise CommandFailed(f"{what} needs the extra '{extra}' ({remedy}); missing: {', '.join(missing)}")


def check_model_word(model: str) -> None:
    """Raise CommandFailed for a flag where the model belongs."""
    if model.startswith("-"):
        raise CommandFailed(f"{model} stands where the model's directory belongs: dormouse serve MODEL {model} …")


def worker_command(model: str, flags: Sequence[str], *, has: Has = is_installed) -> list[str]:
    """Return the command line of the worker. Raises CommandFailed naming the extra, or the misplaced flag."""
    check_model_word(model)
    check_installed(NEEDED, "serving", "worker", has)
    # -P: nothing in the present directory may pass for one of our modules
    return [sys.executable, "-P", "-m", "dormouse_worker", *DEFAULTS, "--model", model, *flags]


def read_flags(words: Sequence[str]) -> tuple[Own, Place, list[str]]:
    """Return our own flags, what the worker's say of its place, and all of the worker's. Raises CommandFailed."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    own.add_argument("--http-port", type=int, default=HTTP_PORT)
    own.add_argument("--no-http", action="store_true")
    own.add_argument("--revision", default="main")
    place = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    place.add_argument("--host", default="127.0.0.1")
    place.add_argument("--port", type=int, default=INFERENCE_PORT)
    place.add_argument("--served-model-name", action="append", default=[])
    place.add_argument("--lora-modules", action="extend", nargs="+", default=[])
    try:
        ours, flags = own.parse_known_args(list(words))
        said, _ = place.parse_known_args(flags)
    except argparse.ArgumentError as error:
        raise CommandFailed(str(error)) from error
    if not 0 <= ours.http_port <= _LAST_PORT:
        raise CommandFailed(f"--http-port is {ours.http_port}; allowed are 0 (any free one) to {_LAST_PORT}")
    http_port = None if ours.no_http else ours.http_port
    return Own(http_port, ours.revision), _place(said), flags


def _place(said: argparse.Namespace) -> Place:
    adapters = tuple(module.partition("=")[0] for module in said.lora_modules)
    return Place(said.host, said.port, tuple(said.served_model_name), adapters)


def download(model: OnHub, cache: Path, say: Callable[[str], None]) -> Path:
    """Have the model's files in the cache; return where. The downloader tells its progress. Raises CommandFailed."""
    directory = model.directory(cache)
    say(f"there is no directory {model.repo} here: taking it from the hub, revision {model.revision}, into {directory}")
    command = [sys.executable, "-P", "-m", "dormouse_worker.download", "--standalone", "--repo", model.repo]
    command += ["--file", model.file] if model.file else []
    done = subprocess.run([*command, "--revision", model.revision, "--directory", str(directory)], check=False)
    if done.returncode:
        raise CommandFailed(f"{model.repo} could not be downloaded; what has come stays and is continued next time")
    return directory


def open_listener(host: str, port: int) -> socket.socket:
    """Return a bound socket for the HTTP API. Raises CommandFailed naming the flag."""
    try:
        return listen(host, port)
    except OSError as error:
        raise CommandFailed(
            f"--http-port {port} on {host}: {error.strerror or error}; choose another one, or --no-http"
        ) from error


def take_port(host: str) -> int:
    """Take a port for a worker that may have any, as its door has to know it; nobody is given it before the worker.

    Raises CommandFailed naming the flag.
    """
    try:
        holder = hold_port(host)
    except OSError as error:
        raise CommandFailed(f"--port 0 on {host}: {error.strerror or error}") from error
    port = int(holder.getsockname()[1])
    os.set_inheritable(holder.detach(), True)  # noqa: FBT003  # it stays open when this process becomes the worker
    return port


def shown_address(listener: socket.socket, host: str) -> str:
    """Return host:port as the user reaches it."""
    shown = "localhost" if host in EVERYWHERE else host
    return f"{f'[{shown}]' if ':' in shown and shown[0] != '[' else shown}:{listener.getsockname()[1]}"


def start_door(listener: socket.socket, place: Place) -> None:
    """Start the process that serves OpenAI's API.

    Its standard input is a pipe whose other end this process keeps, and keeps when it becomes the worker: it closes
    when the worker ends, in whichever way, and no copy of it goes to the worker's own children.
    """
    its_end, our_end = os.pipe()
    os.set_inheritable(our_end, True)  # noqa: FBT003  # named so in its signature only
    command = [sys.executable, "-P", "-m", "dormouse_gateway.standalone", "--listener", str(listener.fileno())]
    command += ["--shown", shown_address(listener, place.host), "--parent", str(os.getpid())]
    command += ["--worker", place.reached_at, str(place.port)]
    command += [*(f"--adapter={name}" for name in place.adapters), "--", *place.names]
    subprocess.Popen(command, stdin=its_end, pass_fds=[listener.fileno()])
    os.close(its_end)
    listener.close()


def prepare(
    model: str, words: Sequence[str], environ: Mapping[str, str], say: Callable[[str], None], *, has: Has = is_installed
) -> list[str]:
    """Do all that comes before the worker, the start of its door included; return the worker's command line.

    Raises CommandFailed; for what can be known by then, before anything is downloaded.
    """
    command = worker_command(model, words, has=has)
    if {"--help", "-h"} & set(words):
        return command
    own, place, flags = read_flags(words)
    listener = None if own.http_port is None else _listener(own.http_port, place, environ, has)
    found = find_model(model, own.revision)
    directory = found if isinstance(found, Path) else download(found, cache_folder(environ), say)
    if not place.names:
        place = replace(place, names=(found.name if isinstance(found, Path) else found.repo,))
        flags += ["--served-model-name", *place.names]
    if listener:
        place = replace(place, port=place.port or take_port(place.host))
        flags += ["--port", str(place.port)]
        start_door(listener, place)
    return worker_command(str(directory), flags, has=has)


def _listener(port: int, place: Place, environ: Mapping[str, str], has: Has) -> socket.socket:
    """Return the socket of the HTTP API. Raises CommandFailed."""
    check_installed(NEEDED_BY_DOOR, "OpenAI's API", "gateway", has, or_else=", or serve gRPC only with --no-http")
    if environ.get("DORMOUSE_MUTUAL_TLS_DIR"):
        raise CommandFailed(
            "DORMOUSE_MUTUAL_TLS_DIR is set: the worker lets in only who has a certificate, and OpenAI's API on this "
            "machine has none; unset it, or serve gRPC only with --no-http"
        )
    return open_listener(place.host, port)
