"""What a worker's /metrics says, as far as `top` shows it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """One worker at one instant."""

    time_s: float  # of a monotonic clock
    running: int
    waiting: int
    kv_usage: float  # 0 to 1
    prompt_tokens: float  # since the worker began
    generated_tokens: float
    host_copy_bytes: float


def parse(text: str, time_s: float) -> Load:
    """Return the load. What the worker does not tell, as an older one may not, is 0."""
    sums: dict[str, float] = {}
    for name, value in _samples(text):
        sums[name] = sums.get(name, 0.0) + value
    return Load(
        time_s=time_s,
        running=int(sums.get("vllm:num_requests_running", 0)),
        waiting=int(sums.get("vllm:num_requests_waiting", 0)),
        kv_usage=sums.get("vllm:kv_cache_usage_perc", 0.0),
        prompt_tokens=sums.get("vllm:prompt_tokens_total", 0.0),
        generated_tokens=sums.get("vllm:generation_tokens_total", 0.0),
        host_copy_bytes=sums.get("dormouse_host_copy_bytes", 0.0),
    )


def _samples(text: str) -> Iterator[tuple[str, float]]:
    """Yield name and value of each finite sample; labels are left out."""
    for line in text.splitlines():
        if line.startswith("#") or " " not in line:
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        try:
            value = float(line.rpartition("} ")[2].split(" ")[0] if "{" in line else line.split(" ")[1])
        except ValueError:
            continue
        if math.isfinite(value):
            yield name, value


def tokens_per_s(before: Load | None, after: Load) -> float | None:
    """Return how many tokens a second were generated between two looks; None if that cannot be known.

    It cannot after a restart, when the count begins anew.
    """
    if before is None or after.time_s <= before.time_s or after.generated_tokens < before.generated_tokens:
        return None
    return (after.generated_tokens - before.generated_tokens) / (after.time_s - before.time_s)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `top`."""

    pod: str
    state: str
    load: Load | None  # None: it cannot be asked
    speed: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """Return what stands in the columns."""
        if self.load is None:
            return (self.pod, self.state, *("-",) * 5)
        speed = "-" if self.speed is None else f"{self.speed:.1f}"
        load = self.load
        copy = f"{load.host_copy_bytes / 2**20:.0f}"
        return (self.pod, self.state, str(load.running), str(load.waiting), f"{load.kv_usage:.1%}", speed, copy)


COLUMNS = ("POD", "STATE", "RUNNING", "WAITING", "KV USED", "TOKENS/S", "HOST COPY MiB")


def rows(states: Mapping[str, str], before: Mapping[str, Load], after: Mapping[str, Load]) -> list[Row]:
    """Return a row for each pod of `states` (name → state), with what was heard of it."""
    found = []
    for pod, state in states.items():
        load = after.get(pod)
        found.append(Row(pod, state, load, tokens_per_s(before.get(pod), load) if load else None))
    return found
