"""Shared by the tests of the model: tiny models, written once per run."""

from __future__ import annotations

import functools

import pytest
import torch

from dormouse_worker.model.testing import write_tiny_model


@pytest.fixture(autouse=True)
def _same_numbers():
    """Whatever was tested before, a test draws the same numbers."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Return a function architecture → directory of a tiny random model."""
    return functools.cache(lambda architecture: write_tiny_model(tmp_path_factory.mktemp(architecture), architecture))
