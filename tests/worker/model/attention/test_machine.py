"""What is found out about a machine."""

import pytest
import torch

from dormouse_worker.common.errors import Internal
from dormouse_worker.model.attention.machine import describe_machine, find_varlen, parse_version
from dormouse_worker.model.attention.varlen import PARAMETERS


def test_of_a_cpu_the_libraries_are_known_and_nothing_of_cuda():
    machine = describe_machine(torch.device("cpu"))
    assert (machine.device_type, machine.capability, machine.cudnn_version) == ("cpu", None, 0)
    assert machine.torch_version >= (2, 11)
    assert machine.triton_version >= (3, 6)
    assert not machine.varlen_parameters
    assert not machine.has_cudnn_varlen


def test_what_varlen_takes_is_looked_up():
    parameters, _ = find_varlen()
    assert parameters >= PARAMETERS


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.15.0+cu132", (2, 15)), ("3.6", (3, 6)), ("2.12a0.dev1", (2, 12)), ("10.0rc1", (10, 0))],
)
def test_a_version_is_its_first_two_numbers(version, expected):
    assert parse_version(version) == expected


@pytest.mark.parametrize("version", ["main", "3", "a.b"])
def test_what_is_no_version_is_an_error_that_shows_it(version):
    with pytest.raises(Internal, match=repr(version)):
        parse_version(version)
