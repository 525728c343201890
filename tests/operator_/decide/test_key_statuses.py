"""What an InferenceKey's status says: valid, over, unreadable, or a copy of an older one."""

from datetime import UTC, datetime

import pytest

from dormouse_api.quotas import DayUse, Use
from dormouse_operator.decide.key_statuses import judge, next_expiry_s, recorded_day
from dormouse_operator.parse.inference_keys import parse_recorded_key

NOW = datetime(2027, 1, 1, tzinfo=UTC)
DIGEST = "a" * 64


def recorded(name="a", *, created="2026-01-01T00:00:00Z", status=None, **spec):
    metadata = {
        "namespace": "team",
        "name": name,
        "generation": 3,
        "resourceVersion": "7",
        "creationTimestamp": created,
    }
    return parse_recorded_key({"metadata": metadata, "spec": {"sha256": DIGEST, **spec}, "status": status})


def judged(*keys):
    return {found.recorded.name: found.status for found in judge(keys, NOW)}


@pytest.mark.parametrize(
    ("spec", "state", "reason", "words"),
    [
        ({}, "Valid", "Valid", "gateways let its callers in"),
        ({"expires": "2027-01-01T00:00:01Z"}, "Valid", "Valid", "gateways let its callers in"),
        ({"expires": "2027-01-01T00:00:00Z"}, "Expired", "Expired", "it ended at 2027-01-01T00:00:00Z"),
        ({"sha256": "no"}, "Refused", "KeyInvalid", "spec.sha256 is not there"),
        ({"requestsPerMinute": True}, "Refused", "KeyInvalid", "spec.requestsPerMinute is True"),
    ],
)
def test_the_state_follows_from_spec_and_time(spec, state, reason, words):
    (status,) = judged(recorded(**spec)).values()
    (condition,) = status["conditions"]
    assert (status["state"], condition["reason"]) == (state, reason)
    assert condition["message"].startswith(words)
    assert (condition["status"], condition["observedGeneration"]) == ("True" if state == "Valid" else "False", 3)


def test_the_younger_of_two_with_one_digest_is_told_which_one_counts():
    found = judged(recorded("young", created="2026-02-01T00:00:00Z"), recorded("old"))
    assert (found["old"]["state"], found["young"]["state"]) == ("Valid", "Refused")
    assert found["young"]["conditions"][0]["message"].startswith("team/old is older")


def test_a_time_stays_while_the_status_does_and_moves_when_it_flips():
    said = {"type": "Valid", "status": "True", "lastTransitionTime": "2026-05-05T00:00:00Z"}
    (kept,) = judged(recorded(status={"conditions": [said]})).values()
    (flipped,) = judged(recorded(status={"conditions": [said]}, expires="2026-12-01T00:00:00Z")).values()
    assert kept["conditions"][0]["lastTransitionTime"] == "2026-05-05T00:00:00Z"
    assert flipped["conditions"][0]["lastTransitionTime"] == "2027-01-01T00:00:00Z"


def usage(recorded_key, counted=None):
    (found,) = judge([recorded_key], NOW, counted)
    return found.status.get("usage")


TODAY = 20_819  # 2027-01-01


def test_a_days_use_is_told_of_keys_that_limit_a_day_as_counted_or_else_as_recorded():
    said = {"usage": {"day": "2027-01-01", "requests": 3, "tokens": 40}}
    old = {"usage": {"day": "2026-12-31", "requests": 3, "tokens": 40}}
    counted = {"team/a": DayUse(TODAY, Use(5, 60))}
    assert usage(recorded(tokensPerDay=9), counted) == {"day": "2027-01-01", "requests": 5, "tokens": 60}
    assert usage(recorded(requestsPerDay=9, status=said)) == said["usage"]
    assert usage(recorded(requestsPerDay=9, status=old)) is None
    assert usage(recorded(requestsPerMinute=9), counted) is None
    assert usage(recorded(sha256="no"), counted) is None
    assert recorded_day(recorded(status=said)) == DayUse(TODAY, Use(3, 40))


def test_the_next_pass_is_due_when_the_next_key_ends():
    keys = [recorded(expires=time) for time in ("2026-12-31T00:00:00Z", "2027-01-01T00:00:09Z", "2027-01-02T00:00:00Z")]
    assert next_expiry_s([*keys, recorded(), recorded(sha256="no")], NOW) == 9.0
    assert next_expiry_s([recorded()], NOW) is None
