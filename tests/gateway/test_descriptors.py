"""How the files that may be open are divided, and that as many are asked for as there may be."""

import resource
import subprocess
import sys

import pytest

from dormouse_gateway.descriptors import Shares, share


@pytest.mark.parametrize(
    ("num_files", "shares"), [(256, Shares(128, 64)), (65536, Shares(2048, 16384)), (1, Shares(1, 1))]
)
def test_clients_get_three_quarters_and_no_more_than_was_wanted(num_files, shares):
    assert share(num_files, 2048) == shares


def test_the_limit_is_raised_as_far_as_nobody_has_to_be_asked():
    says = "from dormouse_gateway.descriptors import limit, raise_limit; raise_limit(); print(limit())"
    command = ["prlimit", "--nofile=100:300", sys.executable, "-c", says]
    assert int(subprocess.run(command, capture_output=True, check=True).stdout) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 300, "only the child's"
