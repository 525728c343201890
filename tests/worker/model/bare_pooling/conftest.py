"""Encoders loaded without torch."""

from contextlib import contextmanager

import pytest

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.bare_pooling.loader import load_embedder
from dormouse_worker.model.device.arrays import ArrayDevice
from dormouse_worker.native.library import load_kernels
from tests.worker.model.bare_pooling.kit import widening_kernels


@contextmanager
def loading(kernels):
    stores = []

    def load(path, **settings):
        fields = {"max_num_batched_tokens": 64, **settings}
        model = load_embedder(EngineSettings(model=str(path), **fields), ArrayDevice(Host()), kernels)
        stores.append(model.weights)
        return model

    try:
        yield load
    finally:
        for store in stores:
            store.close()


@pytest.fixture
def loaded():
    """Return a function that loads a model; its memory is given back after the test."""
    with loading(load_kernels()) as load:
        yield load


@pytest.fixture
def widened():
    """Return the same for kernels that make float32 of bfloat16."""
    with loading(widening_kernels()) as load:
        yield load
