"""A clause that says why somebody else computes a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a model keeps transformers' own forward pass: a clause that goes after 'because'."""

    reason: str
