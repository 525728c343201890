"""What a parser tells of an answer, in the order in which the model says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the caller."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A function is called. Its arguments follow in pieces, before anything else of the answer."""

    index: int  # of the call in its answer, from 0
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of a call's arguments. All pieces of a call together are one JSON object."""

    index: int
    text: str


Event = Content | Reasoning | CallBegins | Arguments
