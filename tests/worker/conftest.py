"""What tests of several of the worker's parts stand on."""

from __future__ import annotations

import sys

import pytest

from dormouse_worker.native.library import Missing, load_kernels

KINDS = [f"dormouse_worker.executor.worker.{name}" for name in ("bare_worker", "lone_worker", "rank_worker")]


@pytest.fixture(scope="module", autouse=True)
def lasting_workers():
    """Let no worker thaw what is frozen.

    Workers collect garbage whenever they load, sleep or end: that takes a second where it looks at all libraries and
    tests of this process, and no time where it looks at what a worker made.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in filter(None, map(sys.modules.get, KINDS)):
            for name in ("freeze_garbage_collector", "thaw_garbage_collector"):
                patch.setattr(module, name, lambda: None)
        yield


@pytest.fixture(scope="session")
def loaded_kernels():
    """Return the kernels that a worker would compute with; without them there is nothing to test."""
    found = load_kernels()
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    return found
