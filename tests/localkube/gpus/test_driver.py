"""What the kubelet is answered for claims."""

from types import SimpleNamespace

import pytest

from localkube.errors import ComponentError
from localkube.gpus import plugin_pb2 as pb
from localkube.gpus import registration_pb2
from localkube.gpus.driver import Plugin, Registration
from localkube.gpus.objects import Gpus
from tests.localkube.gpus.kit import FakeApi, a_claim, asked

CONTEXT = SimpleNamespace()


def prepare(api, *claims, number=2):
    """Return the answers by UID."""
    plugin = Plugin(api, Gpus(number, "512Mi"))
    return plugin.NodePrepareResources(pb.NodePrepareResourcesRequest(claims=claims), CONTEXT).claims


def test_the_devices_that_were_allocated_are_named_with_their_request():
    answer = prepare(FakeApi(a_claim("a", "gpu-1")), asked("a"))["uid-a"]
    [device] = answer.devices
    assert answer.error == ""
    assert (device.pool_name, device.device_name, list(device.request_names)) == ("localkube", "gpu-1", ["gpu"])


def test_nothing_is_to_be_put_into_the_container():
    [device] = prepare(FakeApi(a_claim("a", "gpu-1")), asked("a"))["uid-a"].devices
    assert list(device.cdi_device_ids) == []


def test_a_claim_is_prepared_again_with_the_same_answer_also_by_the_next_driver():
    api = FakeApi(a_claim("a", "gpu-0"))
    assert prepare(api, asked("a"))["uid-a"] == prepare(api, asked("a"))["uid-a"]


@pytest.mark.parametrize(
    ("claim", "question", "words"),
    [
        (a_claim("other", "gpu-0"), asked("a"), "404"),
        (a_claim("a", "gpu-0"), asked("a", "uid-of-before"), "uid-a, not uid-of-before"),
        (a_claim("a"), asked("a"), "nothing of gpu.localkube.dormouse.dev is allocated"),
        (a_claim("a", "gpu-0", driver="gpu.example.com"), asked("a"), "nothing of gpu.localkube.dormouse.dev"),
        (a_claim("a", "gpu-0", "gpu-7"), asked("a"), "no localkube/gpu-7 any more"),
    ],
    ids=["gone", "another of the same name", "not allocated", "of another driver", "of a larger offer"],
)
def test_a_claim_that_can_not_be_prepared_says_why(claim, question, words):
    answer = prepare(FakeApi(claim), question)[question.uid]
    assert words in answer.error
    assert not answer.devices


def test_a_claim_that_fails_leaves_the_others_alone():
    answers = prepare(FakeApi(a_claim("a", "gpu-0")), asked("gone"), asked("a"))
    assert answers["uid-gone"].error
    assert [device.device_name for device in answers["uid-a"].devices] == ["gpu-0"]


def test_every_claim_is_given_back_also_one_that_nobody_knows():
    plugin = Plugin(FakeApi(), Gpus(2, "512Mi"))
    request = pb.NodeUnprepareResourcesRequest(claims=[asked("a"), asked("gone")])
    answers = plugin.NodeUnprepareResources(request, CONTEXT).claims
    assert {uid: answer.error for uid, answer in answers.items()} == {"uid-a": "", "uid-gone": ""}


@pytest.fixture
def registration(tmp_path):
    return Registration(tmp_path / "dra.sock")


def test_the_driver_says_which_socket_serves_which_contract(registration, tmp_path):
    info = registration.GetInfo(registration_pb2.InfoRequest(), CONTEXT)
    assert (info.type, info.name) == ("DRAPlugin", "gpu.localkube.dormouse.dev")
    assert (info.endpoint, list(info.supported_versions)) == (str(tmp_path / "dra.sock"), ["v1.DRAPlugin"])


def tell(registration, **status):
    registration.NotifyRegistrationStatus(registration_pb2.RegistrationStatus(**status), CONTEXT)


def test_a_driver_that_was_taken_goes_on(registration):
    tell(registration, plugin_registered=True)
    registration.wait(0)


def test_a_driver_that_was_refused_says_why(registration):
    tell(registration, plugin_registered=False, error="the name is taken")
    with pytest.raises(ComponentError, match="the name is taken"):
        registration.wait(0)


def test_a_refusal_without_a_word_is_one(registration):
    tell(registration, plugin_registered=False)
    with pytest.raises(ComponentError, match="no reason given"):
        registration.wait(0)


def test_a_kubelet_that_says_nothing_is_named(registration):
    with pytest.raises(ComponentError, match="did not register"):
        registration.wait(0)
