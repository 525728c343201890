"""Accepted: this operator can do what the spec asks for. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions.verdicts import failed, holds
from dormouse_operator.decide.rejection import Rejection
from dormouse_operator.model import Condition

TYPE = "Accepted"


def evaluate(rejection: Rejection | None) -> Condition:
    """See the module."""
    return failed(TYPE, *rejection) if rejection else holds(TYPE, "Accepted", "the spec can be served")
