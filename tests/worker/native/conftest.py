"""The kernels of this working tree, each variant that this processor runs."""

from __future__ import annotations

import pytest

from dormouse_worker.native.build import NotBuilt, ensure
from dormouse_worker.native.library import Missing, open_library

NAMES = ("avx512bf16", "avx512vnni", "avx512", "avx2", "portable")


@pytest.fixture(scope="session")
def variants():
    """Return the kernels by name."""
    try:
        found = open_library(ensure())
    except NotBuilt as error:
        pytest.skip(f"the kernels are not built: {error}")
    assert not isinstance(found, Missing), found.reason
    return {kernels.name: kernels for kernels in found}


@pytest.fixture(params=NAMES)
def kernels(request, variants):
    """Return one variant, computing on two threads."""
    if request.param not in variants:
        pytest.skip(f"this processor does not run {request.param}")
    chosen = variants[request.param]
    chosen.set_num_threads(2)
    return chosen
