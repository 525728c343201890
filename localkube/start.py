"""Bring components up: start what does not run, wait until it is ready, and say whose fault it is if it does not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from localkube import host, processes
from localkube.components import Component, Wave
from localkube.errors import ComponentError
from localkube.probes import FileExists, is_ready
from localkube.progress import Progress
from localkube.spec import Paths

POLL_S = 0.1


def pid_file(paths: Paths, name: str) -> Path:
    """Return where a component's identity is written."""
    return paths.pids / f"{name}.json"


def log_file(paths: Paths, name: str) -> Path:
    """Return where a component's output goes."""
    return paths.logs / f"{name}.log"


@dataclass(frozen=True, slots=True)
class State:
    """What one component does now."""

    name: str
    pid: int | None
    ready: bool

    @property
    def text(self) -> str:
        """In one word."""
        if self.pid is None:
            return "down"
        return "ready" if self.ready else "not-ready"


def observe(paths: Paths, component: Component) -> State:
    """Look at one component: a probe that somebody else answers does not make ours ready."""
    identity = processes.read_pid_file(pid_file(paths, component.name))
    if identity is None or not processes.is_alive(identity):
        return State(component.name, None, ready=False)
    return State(component.name, identity.pid, is_ready(component.ready))


def _failure(paths: Paths, component: Component, what: str) -> ComponentError:
    log = log_file(paths, component.name)
    return ComponentError(f"{component.name} {what}; log: {log}, its last lines:\n{processes.tail(log)}")


def _start(paths: Paths, component: Component) -> None:
    if (address := host.clash(component)) is not None:
        raise ComponentError(f"{component.name} needs {address}, where another program listens; end that one first")
    if isinstance(component.ready, FileExists):
        component.ready.path.unlink(missing_ok=True)
    # Nothing else of the caller's environment: a proxy set there would swallow the traffic to the node's address.
    env = {"PATH": host.search_path(), "HOME": str(Path.home()), **component.env}
    log = log_file(paths, component.name)
    if processes.start(component.argv, log=log, pid_file=pid_file(paths, component.name), env=env) is None:
        raise _failure(paths, component, "ended at once")


def run_wave(paths: Paths, wave: Wave, progress: Progress) -> None:
    """Start the wave's missing components and wait for all; raises ComponentError for the first that fails."""
    started = time.monotonic()
    waiting = {}
    for component in wave:
        state = observe(paths, component)
        if state.ready:
            continue
        if state.pid is None:
            _start(paths, component)
        waiting[component.name] = component
    while waiting:
        for component in list(waiting.values()):
            elapsed_s = time.monotonic() - started
            if _is_settled(paths, component, elapsed_s):
                del waiting[component.name]
                progress.say(f"{component.name} ready after {elapsed_s:.1f} s")
        time.sleep(POLL_S if waiting else 0)


def _is_settled(paths: Paths, component: Component, elapsed_s: float) -> bool:
    state = observe(paths, component)
    if state.pid is None:
        raise _failure(paths, component, "ended before it was ready")
    if not state.ready and elapsed_s > component.timeout_s:
        raise _failure(paths, component, f"was not ready after {component.timeout_s:.0f} s")
    return state.ready
