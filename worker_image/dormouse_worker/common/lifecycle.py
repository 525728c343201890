"""The life of a worker as tables: allowed transitions, and what each state allows and means for a caller. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dormouse_worker.common.ipc import State

# FAILED is reachable from everywhere and left by nothing but a new engine process. An engine that died takes the worker
# back to STARTING from wherever it was; that is the front's word, the engine itself never says it. So are STANDBY, into
# which sleep level 3 leads from everywhere, and the STARTING of a wake from there.
TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.STARTING: frozenset({State.LOADING, State.FAILED}),
        State.LOADING: frozenset({State.PROFILED, State.FAILED}),
        State.PROFILED: frozenset({State.INITIALIZING, State.FAILED}),
        State.INITIALIZING: frozenset({State.READY, State.PROFILED, State.FAILED}),  # PROFILED: counts were refused
        State.READY: frozenset({State.DRAINING, State.INITIALIZING, State.FAILED}),  # INITIALIZING: another count
        State.DRAINING: frozenset({State.READY, State.INITIALIZING, State.ASLEEP, State.FAILED}),
        State.ASLEEP: frozenset({State.WAKING, State.FAILED}),
        State.WAKING: frozenset({State.READY, State.ASLEEP, State.FAILED}),  # ASLEEP: the wake was refused
        State.FAILED: frozenset(),
        State.STANDBY: frozenset({State.FAILED}),
    }
)

# States in which the device computes; asleep it is left as it is. The engine knows no DRAINING: it is READY then.
COMPUTING = (State.PROFILED, State.READY, State.DRAINING)
_ANY = tuple(State)

# The states of a worker that allow each call of `WorkerControl` and each command to the engine.
ALLOWED_IN: Mapping[str, tuple[State, ...]] = MappingProxyType(
    {
        "InitializeCache": (State.PROFILED, State.READY, State.DRAINING),
        "AbortAll": _ANY,
        "PrepareSleep": (State.READY, State.DRAINING, State.ASLEEP, State.STANDBY),
        "Sleep": (State.READY, State.DRAINING, State.ASLEEP, State.STANDBY),  # level 3: any
        "PrepareWakeUp": (State.ASLEEP, State.READY),
        "WakeUp": (State.ASLEEP, State.READY, State.WAKING),  # WAKING: comes after the wake under way
        "SwapEngine": (State.READY, State.DRAINING, State.ASLEEP),
        "ResetPrefixCache": _ANY,  # where there is no cache, nothing happens
        "ResetMultimodalCache": _ANY,
        "SaveShardedState": (State.READY,),
        "StartProfile": COMPUTING,
        "StopProfile": (*COMPUTING, State.ASLEEP),  # a sleep has written what ran; the refusal says where
        "CheckHealth": _ANY,
        "AddLora": COMPUTING,
        "RemoveLora": COMPUTING,
        "PinLora": COMPUTING,
        "ListLoras": COMPUTING,
        "Shutdown": _ANY,
    }
)

# How long a caller should wait before it asks again; states that end by themselves end in about this time.
RETRY_AFTER_S: Mapping[State, float] = MappingProxyType(
    {
        State.STARTING: 2.0,
        State.LOADING: 2.0,
        State.PROFILED: 1.0,
        State.INITIALIZING: 1.0,
        State.READY: 0.5,
        State.DRAINING: 1.0,
        State.ASLEEP: 5.0,
        State.WAKING: 1.0,
        State.FAILED: 10.0,
        State.STANDBY: 5.0,
    }
)

# On the way from an engine's start to service. A wake changes nothing there: what it asks for is under way.
RISING: frozenset[State] = frozenset({State.STARTING, State.LOADING, State.PROFILED, State.INITIALIZING})

# States in which the engine loop comes round; in the others it is inside one long piece of work.
STEPPING: frozenset[State] = frozenset({State.PROFILED, State.READY, State.DRAINING, State.ASLEEP})


def is_allowed(old: State, new: State) -> bool:
    """Return whether a worker may go from one state to the other; staying is always allowed."""
    return old is new or new in TRANSITIONS[old]


def combine(engine: State, *, draining: bool) -> State:
    """Return the worker's state: draining is the front's alone and means something only while the engine is READY."""
    return State.DRAINING if draining and engine is State.READY else engine


def why_not(call: str, state: State, sleep_level: int) -> str:
    """Return why a worker in this state refuses a call, one of `ALLOWED_IN`; "" = it does not."""
    allowed = ALLOWED_IN[call]
    if state in allowed:
        return ""
    return f"{call} needs the state {' or '.join(allowed)}; the worker is {describe(state, sleep_level)}"


def describe(state: State, sleep_level: int) -> str:
    """Return the state in words, as they end the sentence 'the worker is …'."""
    if state is State.ASLEEP:
        return f"asleep at level {sleep_level}"
    if state is State.STANDBY:
        return "in standby"
    return state.lower()
