"""Degraded: somebody has to act. Repeats the first failure of the others, so that one look is enough. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dormouse_operator.conditions.ladder import failed, not_yet
from dormouse_operator.model import Condition, Observed

TYPE = "Degraded"


def evaluate(observed: Observed, others: Iterable[Condition]) -> Condition:
    """See the module. `others` are the conditions that were evaluated before."""
    key = observed.deployment.key
    if observed.forbidden:
        return _is(failed(TYPE, "Forbidden", f"the API server does not allow it: {observed.forbidden}"))
    if failure := next((condition for condition in others if condition.is_failure), None):
        return _is(failed(TYPE, failure.reason, failure.message))
    if observed.name_owner:
        name = observed.deployment.model.served_name
        words = f"{observed.name_owner} is older and serves the model name {name!r}; this one answers to {key} only"
        return _is(failed(TYPE, "NameTaken", f"{words}. Set another spec.model.name"))
    return not_yet(TYPE, "AsExpected", "nothing needs attention")


def _is(condition: Condition) -> Condition:
    """Return it as holding: this condition is the only one that is bad when True."""
    return Condition(condition.type, "True", condition.reason, condition.message, is_failure=True)
