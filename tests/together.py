"""Which tests run one after another in one process, when several processes share the tests: those of one file."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

ONE_DRIVER = ("tests/e2e/test_claims.py", "tests/e2e/test_pools.py")
"""Files that each start the driver of GPUs, of which the node has one at a time."""


class Together(LoadFileScheduling):
    """`--dist loadfile`, but for files that share what there is once.

    The mark `xdist_group` is for this, and pytest-xdist 3.8 does not see it with pytest 9.2: every test runs anywhere.
    """

    def _split_scope(self, nodeid: str) -> str:
        """Return the name of the group to which a test belongs."""
        file = nodeid.partition("::")[0]
        return "driver" if file in ONE_DRIVER else file
