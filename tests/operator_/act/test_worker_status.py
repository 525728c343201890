"""What a worker says of itself as the operator's noun."""

import pytest

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_operator.act.worker_status import parse_worker


@pytest.mark.parametrize(
    ("claimed", "levels"),
    [
        ([], (1, 2, 3)),
        (["sleep_level_1", "sleep_level_2", "standby", "resume"], (1, 2, 3)),
        (["standby", "relay"], (3,)),
        (["relay", "what comes later"], ()),
    ],
)
def test_a_level_has_to_be_claimed_by_who_claims_anything(claimed, levels):
    assert parse_worker(pb.WorkerStatus(capabilities=claimed)).sleep_levels == levels
