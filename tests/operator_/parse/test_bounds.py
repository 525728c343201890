"""What the API server says of a quota or a LimitRange is told in parts: asked for, used, limit."""

from __future__ import annotations

import pytest

from dormouse_api.remedies import REMEDIES
from dormouse_operator.parse import parse_bound

POD = 'pods "tiny-a1b2c" is forbidden: '
RATIO = "cpu max limit to request ratio per {} is 2"
AT_MOST = "has a limit of at most 2 times the request"
RATIOS = (
    "[minimum cpu usage per Container is 100m, but request is 50m, "
    "maximum memory usage per Pod is 1Gi, but no limit is specified, "
    f"{RATIO.format('Container')}, but provided ratio is 4.000000, "
    f"{RATIO.format('Pod')}, but no request is specified or request is 0]"
)
TOLD_RATIOS = (
    "a LimitRange of the namespace: cpu of each Container is at least 100m, but request is 50m; "
    f"memory of each Pod is at most 1Gi, but no limit is specified; cpu of each Container {AT_MOST}, "
    f"but provided ratio is 4.000000; cpu of each Pod {AT_MOST}, but no request is specified or request is 0"
)
CASES = {
    "exceeded quota: compute, requested: pods=1,requests.memory=2Gi, used: pods=4,requests.memory=6Gi, "
    "limited: pods=4,requests.memory=7Gi": (
        "QuotaExceeded",
        "ResourceQuota compute: pods 1 asked for, 4 of 4 used; requests.memory 2Gi asked for, 6Gi of 7Gi used",
    ),
    "exceeded quota: odd, requested: a, used: b=1, limited: ,": (
        "QuotaExceeded",
        "ResourceQuota odd: a  asked for, ? of ? used",
    ),
    "failed quota: compute: must specify limits.cpu for: worker; limits.memory for: http": (
        "QuotaNeedsValues",
        "ResourceQuota compute takes only what sets limits.cpu for: worker; limits.memory for: http",
    ),
    "maximum memory usage per Container is 1Gi, but limit is 1536Mi": (
        "OutsideLimitRange",
        "a LimitRange of the namespace: memory of each Container is at most 1Gi, but limit is 1536Mi",
    ),
    RATIOS: (
        "OutsideLimitRange",
        TOLD_RATIOS,
    ),
}


@pytest.mark.parametrize(("words", "told"), CASES.items())
def test_it_is_told_in_parts(words, told):
    assert parse_bound(POD + words) == told
    assert told[0] in REMEDIES


@pytest.mark.parametrize(
    "words",
    ["violates PodSecurity", "status unknown for quota: compute, resources: pods", "exceeded quota: storage", ""],
)
def test_other_words_are_of_neither(words):
    assert parse_bound(POD + words) is None
