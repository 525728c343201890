"""What a router policy is asked and answers: a request's demand, the workers that may have it, the choice. Only nouns.

A policy of one's own (docs/concepts/routing.md) needs nothing but this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from dormouse_api.names import DECODE


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request will cost a worker, in tokens, counted or estimated; what it asks for, and with what it begins."""

    prompt_tokens: int = 0
    output_tokens: int = 0  # of each choice, at most
    num_choices: int = 1
    tokens_per_message: int = 1  # of the answer
    prefix: int | None = None  # 64 bits: equal where prompts begin alike and may share cached blocks; None = too short
    role: str = ""  # of the workers that shall have it, prefill or decode, while one of them is ready; "" = any
    adapter: int | None = None  # 64 bits: which LoRA adapter of the deployment shall answer; None = the base model

    @property
    def kept(self) -> int | None:
        """Return what one worker may have ready for requests like this: an adapter with its prefixes, or a prefix."""
        return self.prefix if self.adapter is None else self.adapter

    @property
    def tokens(self) -> int:
        """Return all of it, at least 1: every request is some work."""
        return max(1, self.prompt_tokens + self.num_choices * self.output_tokens)

    def rest(self, num_done: int) -> Demand:
        """Return what it costs to have one choice continued of which so many tokens are there."""
        left = max(0, self.output_tokens - num_done)
        prompt_tokens, role = self.prompt_tokens + num_done, self.role and DECODE
        return replace(self, prompt_tokens=prompt_tokens, output_tokens=left, num_choices=1, role=role)


NOTHING = Demand()


class Worker(NamedTuple):  # one is made for each worker and request: a frozen dataclass costs three times as much
    """A worker that may be given the request: it takes requests, has room, and its breaker lets one in."""

    name: str  # namespace/pod
    tokens: float = 0.0  # outstanding: what our requests still cost there, and about what those of others do
    requests: int = 0  # outstanding, those of other gateways included as far as the worker told
    kv_cache_usage: float = 0.0  # 0 to 1, as it told last
    total: int = 0  # requests that it was given since it is known; a newcomer starts with the least of its peers
    last_turn: int = 0  # when it was last chosen, in turns over all workers; 0 = never


class Affinity(StrEnum):
    """Whether a request went to where its adapter is kept, or without one its prefix."""

    NONE = "none"  # it has neither, or the policy does not look at it
    HIT = "hit"
    SPILLED = "spilled"  # that worker has too much to do


@dataclass(frozen=True, slots=True)
class Choice:
    """The worker that gets the request."""

    worker: Worker
    affinity: Affinity = Affinity.NONE  # what is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The gateway's settings that are for policies."""

    affinity_bound: float  # 1 to 100


class RouterPolicy(Protocol):
    """Chooses among workers. One object for all deployments; called on the event loop, so it must not wait."""

    def choose(self, demand: Demand, workers: Sequence[Worker]) -> Choice | None:
        """Return one of these workers, of which there is at least one; all are of one deployment. Changes nothing.

        None lets the request wait for others, as if these had no room.
        """
        ...


PolicyFactory = Callable[[PolicyOptions], RouterPolicy]
