"""What one rank sees of its pod: its variables, its device, its share of cores."""

from __future__ import annotations

import msgspec
import pytest

from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.environment import (
    interface_of,
    meeting_variables,
    rank_share,
    rank_variables,
    timeout_variables,
    visible_device,
)

SETTINGS = EngineSettings(model="m", tensor_parallel_size=2, threads=6)


class TwoCores:
    """A machine of two cores."""

    def num_threads(self, wanted):
        return wanted or 2


def test_a_rank_is_told_whole_seconds_to_wait_for_another():
    assert timeout_variables(7.5) == {"DORMOUSE_GROUP_TIMEOUT_S": "8"}


def test_a_rank_knows_where_it_stands():
    assert rank_variables(Layout(2, 2, 3)) == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("visible", "rank", "device"),
    [(None, 3, "1"), ("4,7", 0, "4"), ("4,7", 3, "7"), ("GPU-a", 1, ""), ("", 1, "1")],
)
def test_a_rank_sees_only_the_device_that_is_its_own(visible, rank, device):
    assert visible_device(Layout(2, 2, rank), visible) == device


def test_ranks_of_one_pod_share_its_cores():
    assert rank_share(SETTINGS, TwoCores()).threads == 3
    assert rank_share(msgspec.structs.replace(SETTINGS, threads=0), TwoCores()).threads == 1
    assert rank_share(msgspec.structs.replace(SETTINGS, threads=1), TwoCores()).threads == 1


def test_a_rank_alone_in_its_pod_has_all_of_it():
    alone = msgspec.structs.replace(SETTINGS, tensor_parallel_size=1, pipeline_parallel_size=2)
    assert rank_share(alone, TwoCores()) == alone


def test_backends_listen_on_one_interface_where_it_is_known():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == "", "an address of nobody"
    assert meeting_variables("a", 5, "eth0")["GLOO_SOCKET_IFNAME"] == "eth0"
    assert meeting_variables("a", 5, "") == {"MASTER_ADDR": "a", "MASTER_PORT": "5"}
