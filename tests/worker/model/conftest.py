"""Shared by the tests of the model: tiny models, written once per run."""

from __future__ import annotations

import functools

import pytest
import torch

from dormouse_worker.model.testing import write_tiny_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tiny tensors compute faster on one thread, and the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _same_numbers():
    """Whatever was tested before, a test draws the same numbers."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Return a function architecture → directory of a tiny random model."""
    return functools.cache(lambda architecture: write_tiny_model(tmp_path_factory.mktemp(architecture), architecture))
