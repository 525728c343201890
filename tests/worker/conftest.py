"""What tests of several of the worker's parts stand on."""

from __future__ import annotations

import pytest

from dormouse_worker.native.library import Missing, load_kernels


@pytest.fixture(scope="session")
def loaded_kernels():
    """Return the kernels that a worker would compute with; without them there is nothing to test."""
    found = load_kernels()
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    return found
