"""What an API server says of a ResourceQuota or a LimitRange that refuses an object → a reason and a sentence. Pure.

Its own words hold the same, but not apart: which quota, what was asked for, what is used, where the limit is. The
patterns are those of Kubernetes' admission plugins ResourceQuota and LimitRanger. A LimitRange does not say its name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

QUOTA_EXCEEDED = "QuotaExceeded"
QUOTA_NEEDS_VALUES = "QuotaNeedsValues"
OUTSIDE_LIMIT_RANGE = "OutsideLimitRange"
_EXCEEDED = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)")
_UNSAID = re.compile(r"failed quota: (\S+): must specify (.+)")
_RANGE = re.compile(
    r"(?:(minimum|maximum) (\S+) usage per (\S+) is|(\S+) max limit to request ratio per (\S+) is) ([^\s,]+), "
    r"but (no (?:request|limit) is specified(?: or request is 0)?|(?:request|limit|provided ratio) is [^\s,\]]+)"
)


class Bound(NamedTuple):
    """Why a namespace has no room for an object."""

    reason: str
    message: str


def parse_bound(words: str) -> Bound | None:
    """Return what the API server's words say of a quota or a LimitRange, None where they say nothing of one."""
    if found := _EXCEEDED.search(words):
        name, *lists = found.groups()
        return Bound(QUOTA_EXCEEDED, f"ResourceQuota {name}: {_sums(*map(_amounts, lists))}")
    if found := _UNSAID.search(words):
        return Bound(QUOTA_NEEDS_VALUES, f"ResourceQuota {found[1]} takes only what sets {found[2]}")
    if breaches := [_breach(found) for found in _RANGE.finditer(words)]:
        return Bound(OUTSIDE_LIMIT_RANGE, f"a LimitRange of the namespace: {'; '.join(breaches)}")
    return None


def _amounts(text: str) -> dict[str, str]:
    """Return the amounts by resource."""
    pairs = (part.partition("=") for part in text.split(","))
    return {resource: amount for resource, _, amount in pairs}


def _sums(asked: dict[str, str], used: dict[str, str], limits: dict[str, str]) -> str:
    return "; ".join(
        f"{resource} {amount} asked for, {used.get(resource, '?')} of {limits.get(resource, '?')} used"
        for resource, amount in asked.items()
    )


def _breach(found: re.Match[str]) -> str:
    bound, of, per, ratio_of, ratio_per, limit, told = found.groups()
    if bound is None:
        return f"{ratio_of} of each {ratio_per} has a limit of at most {limit} times the request, but {told}"
    return f"{of} of each {per} is at {'least' if bound == 'minimum' else 'most'} {limit}, but {told}"
