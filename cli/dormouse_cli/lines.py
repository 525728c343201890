"""A view as lines of text: what `status` shows, with colours on a terminal and without elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from dormouse_cli.view import CrashView, DeploymentView, RankView, ReplicaView

_COLOURS = {
    "Active": "green",
    "Serving": "green",
    "Asleep": "blue",
    "Standby": "blue",
    "Zero": "blue",
    "Off": "blue",
    "Degraded": "yellow",
    "Failed": "red",
    "Rejected": "red",
    "Ended": "red",
    "NotReady": "yellow",
    "Held": "green",
    "Free": "blue",
    "Fouled": "red",
    "Loaded": "green",
    "Waiting": "blue",
}

_TURNS = {
    "Held": "holds",
    "Granting": "is given",
    "Yielding": "leaves",
    "Level1": "at level 1 on",
    "Level2": "at level 2 on",
}  # what a pool says of a replica → before the name of its slot


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the tree."""

    depth: int  # 0 = deployment, 1 = replica or problem, 2 = rank, or what ended in the replica
    text: str
    style: str = ""  # of the whole line
    word: str = ""  # this word of it gets the colour of its state

    @property
    def colour(self) -> str:
        """Return the colour of the word."""
        return _COLOURS.get(self.word, "cyan")


def tree(view: DeploymentView, now: datetime) -> Iterator[Line]:
    """Yield deployment → replica → rank, and what is missing where something is."""
    yield Line(0, _deployment(view, now), word=view.phase)
    problem = view.problem
    if problem:
        yield Line(1, f"{problem.type} is {problem.status}: {problem.reason}: {problem.message}", style="yellow")
        if problem.remedy:
            yield Line(1, f"what to do: {problem.remedy}", style="yellow")
    if not view.is_current:
        yield Line(1, "the status is older than the spec: the operator has not looked yet", style="yellow")
    if view.waits_since:
        yield Line(1, f"waits for a slot of pool {view.pool} since {ago(view.waits_since, now)}")
    for pod in view.pods:
        yield Line(1, _replica(pod), word=pod.state)
        yield from (Line(2, _crash(one, now), style="yellow") for one in view.crashes if one.pod == pod.pod)
        for rank in pod.ranks:
            yield Line(2, _rank(rank))
    shown = {pod.pod for pod in view.pods}
    others = (one for one in view.crashes if one.pod not in shown)
    yield from (Line(1, f"{one.pod}: {_crash(one, now)}", style="yellow") for one in others)


def _deployment(view: DeploymentView, now: datetime) -> str:
    parts = [
        f"{view.full_name}  {view.phase}  {view.ready}/{view.replicas} ready",
        f"{view.sleeping} asleep" if view.sleeping else "",
        f"{view.blocks} blocks of {view.block_size} tokens" if view.blocks is not None else "",
        f"in pool {view.pool}" if view.pool else "",
        f"ordered {view.desired_state}" if view.desired_state != "Auto" else "",
        last_wake(view, now),
    ]
    return ", ".join(part for part in parts if part)


def last_wake(view: DeploymentView, now: datetime) -> str:
    """Return how and when it last came to serve, "" if never."""
    wake = view.last_wake
    if wake is None:
        return ""
    how = "cold start" if wake.path == "cold" else f"wake from {wake.path}"
    return f"last {how} took {wake.seconds:.3g} s, {ago(wake.time, now)} ({wake.reason})"


def _replica(pod: ReplicaView) -> str:
    parts = [
        f"replica {pod.replica or '?'}  {pod.pod}  {pod.state}",
        pod.detail,
        f"{_TURNS.get(pod.turn, 'on')} slot {pod.slot}" if pod.slot else "",
        f"on {pod.node}" if pod.node else "",
        f"memory limit {pod.memory_limit}" if pod.memory_limit else "",
        f"{pod.restarts} restarts" if pod.restarts else "",
    ]
    return ", ".join(part for part in parts if part)


def _crash(crash: CrashView, now: datetime) -> str:
    when = f" {ago(crash.time, now)}" if crash.time else ""
    times = "once" if crash.count == 1 else f"{crash.count} times, last"
    return f"ended {times}{when}: {crash.reason}: {crash.message}"


def _rank(rank: RankView) -> str:
    parts = [
        f"rank {rank.rank}  {rank.device}",
        f"asleep at level {rank.sleep_level}" if rank.sleep_level else "",
        f"{rank.blocks} blocks" if rank.blocks is not None else "",
        f"{rank.fits} fit" if rank.fits is not None else "",
        f"limited by {rank.limited_by}" if rank.limited_by else "",
        f"still holds {size(rank.residual_bytes)}" if rank.residual_bytes else "",
    ]
    return ", ".join(part for part in parts if part)


def size(num_bytes: float) -> str:
    """Return bytes in the largest unit of which there is at least one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"


def ago(time: str, now: datetime) -> str:
    """Return how long ago an RFC 3339 time was, in one unit; the text itself if it is no time."""
    try:
        seconds = (now - datetime.fromisoformat(time).astimezone(UTC)).total_seconds()
    except ValueError:
        return time
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
