"""`dormouse keys create`: the key is told once, its digest is stored."""

import hashlib
from datetime import UTC, datetime

from dormouse_api.inference_keys import parse_inference_key
from dormouse_kube.api import INFERENCE_KEYS
from tests.cli import kit


def test_the_printed_key_is_the_one_whose_digest_is_stored(dormouse):
    fake = kit.cluster()
    result = dormouse(fake, "keys", "create", "a", "-n", "team")
    key = result.stdout.strip()
    stored = fake.peek(INFERENCE_KEYS, "team", "a")
    assert stored["spec"] == {"sha256": hashlib.sha256(key.encode()).hexdigest()}
    assert len(key) > 40
    assert key not in result.stderr + str(stored)


def test_what_it_may_do_is_stored_as_gateways_read_it(dormouse):
    fake = kit.cluster()
    given = "--model tiny --model org/big --expires-in-days 1 --requests-per-minute 60 --max-concurrent 4"
    assert dormouse(fake, "keys", "create", "a", *given.split()).exit_code == 0
    key = parse_inference_key(fake.peek(INFERENCE_KEYS, "default", "a"))
    assert key.models == {"tiny", "org/big"}
    assert (key.quota.requests_per_minute, key.max_concurrent) == (60, 4)
    assert 86_000 < (key.expires - datetime.now(UTC)).total_seconds() <= 86_400


def test_a_name_that_is_taken_prints_no_key(dormouse):
    fake = kit.cluster()
    dormouse(fake, "keys", "create", "a")
    result = dormouse(fake, "keys", "create", "a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "default/a is there already" in result.stderr
