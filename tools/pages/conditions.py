"""docs/reference/conditions.md: every reason of a condition with what to do, from the one list of remedies."""

from __future__ import annotations

from dormouse_api.remedies import REMEDIES
from tools.pages.tables import code, page, table

_INTRODUCTION = """Every reason of a condition of an InferenceDeployment or a GpuPool, and what to do about it.
[Lifecycle](../concepts/lifecycle.md#conditions) explains the conditions. `dormouse status` and `dormouse doctor` print
the same advice."""


def text() -> str:
    """Return the page."""
    rows = ((code(reason), remedy) for reason, remedy in REMEDIES.items())
    return page("Reasons of conditions", _INTRODUCTION, table(("reason", "what to do"), rows))
