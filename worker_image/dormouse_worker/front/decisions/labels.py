"""How likely labels are, of one token or of several: which tokens have to be asked about, and what the answers come to.

A label's probability is the product over its tokens of how likely each is behind those before it. So the labels of a
question are a tree, and each node where something goes on is one thing to ask: how likely are, behind these tokens,
those that may follow? Labels of one token each are one node. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One thing to ask."""

    path: Tokens  # behind the prompt; empty for the root
    token_ids: Tokens  # how likely are these behind it


@dataclass(frozen=True, slots=True)
class Decided:
    """What a question's log-probabilities come to."""

    probabilities: list[float]  # of the labels, in their order; their sum is 1
    label_mass: float  # how likely any of them is


def nodes_of(labels: Sequence[Tokens]) -> list[Node]:
    """Return what has to be asked, the root first; nothing where a label has no tokens, or begins another."""
    followers: dict[Tokens, dict[int, None]] = {(): {}}
    for label in labels:
        for depth, token_id in enumerate(label):
            followers.setdefault(label[:depth], {})[token_id] = None
    if len(set(labels)) < len(labels) or any(label in followers for label in labels):
        return []
    return [Node(path, tuple(token_ids)) for path, token_ids in followers.items()]


def decided(labels: Sequence[Tokens], told: Mapping[Tokens, Mapping[int, float]]) -> Decided | None:
    """Return how likely the labels are; `told`: path → token → log-probability. None where none is likely at all."""
    logprobs = [sum(told[label[:depth]][token_id] for depth, token_id in enumerate(label)) for label in labels]
    top = max(logprobs)
    if top == -math.inf:
        return None
    weights = [math.exp(logprob - top) for logprob in logprobs]
    total = sum(weights)
    return Decided([weight / total for weight in weights], min(1.0, math.exp(top) * total))
