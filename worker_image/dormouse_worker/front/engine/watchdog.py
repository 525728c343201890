"""Whether the engine takes too long with what it does, and the sentence that says so. Decides only; `supervisor` acts.

At any time an engine does one of three things, and each has a limit of its own: it starts (process, weights, profile),
it carries out a command, or its loop comes round and is heard of.
"""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_worker.common.commands import CheckHealth, Command, SaveShardedState, WakeUp
from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import STEPPING

_STARTING = frozenset({State.STARTING, State.LOADING})
_LOADING_COMMANDS = (WakeUp, SaveShardedState)  # they read or write all weights, as a start does
_PROBES = (CheckHealth,)  # they take no longer than a turn, and must not hide that none comes


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How long an engine may take before it is killed and another one started."""

    silence_s: float  # between two turns of the loop: above the longest forward pass
    load_s: float  # for what reads the weights: a start, a wake-up
    command_s: float  # for any other command


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """What the engine was told to do and has not answered yet."""

    command: Command
    seconds: float  # since it was told, or since it was done with the command before


@dataclass(frozen=True, slots=True)
class Watchdog:
    """What a living engine is at."""

    state: State
    age_s: float  # since its process was started
    silence_s: float  # since it was last heard of
    command: RunningCommand | None


def overdue(pursuit: Watchdog, limits: EngineLimits) -> str:
    """Return what took too long, with seconds and flag; "" if nothing did."""
    if pursuit.command is not None:
        return _late_command(pursuit.command, limits)
    if pursuit.state in _STARTING and pursuit.age_s > limits.load_s:
        return f"it took longer to start than {limits.load_s:g} s (--engine-load-timeout)"
    if pursuit.state in STEPPING and pursuit.silence_s > limits.silence_s:
        return f"it was silent for longer than {limits.silence_s:g} s (--engine-timeout)"
    return ""


def _late_command(running: RunningCommand, limits: EngineLimits) -> str:
    limit_s, flag = limits.command_s, "--engine-command-timeout"
    if isinstance(running.command, _LOADING_COMMANDS):
        limit_s, flag = limits.load_s, "--engine-load-timeout"
    elif isinstance(running.command, _PROBES):
        limit_s, flag = limits.silence_s, "--engine-timeout"
    if running.seconds <= limit_s:
        return ""
    return f"{running.command.method} took longer than {limit_s:g} s ({flag})"
