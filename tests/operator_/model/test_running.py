"""What a pod says of itself."""

import pytest

from dormouse_operator.model.running import Container
from dormouse_operator.testing.nouns import a_pod

RUNS = Container(is_running=True)


@pytest.mark.parametrize(
    ("fields", "asked", "downloading"),
    [
        ({"container": RUNS}, True, False),
        ({"container": Container(), "downloader": RUNS}, False, True),
        ({"container": Container(), "downloader": RUNS, "ip": ""}, False, False),
        ({"container": Container(), "downloader": RUNS, "is_deleting": True}, False, False),
    ],
)
def test_who_can_be_asked_there_is_the_worker_or_what_fetches_its_model(fields, asked, downloading):
    pod = a_pod(**fields)
    assert (pod.can_be_asked, pod.is_downloading) == (asked, downloading)


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"is_scheduled": True, "ip": ""}, True),
        ({"is_scheduled": True}, False),
        ({"is_scheduled": False, "ip": ""}, False),
        ({"is_scheduled": True, "ip": "", "is_deleting": True}, False),
        ({"is_scheduled": True, "ip": "", "has_ended": True}, False),
    ],
)
def test_a_pod_on_a_node_without_an_address_waits_for_what_it_mounts(fields, waits):
    assert a_pod(**fields).waits_for_volumes == waits
