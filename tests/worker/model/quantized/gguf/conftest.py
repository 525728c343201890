"""GGUF files and the models that are loaded from them."""

import pytest

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing import write_tiny_model
from tests.worker.model.quantized.gguf.kit import SIZES, convert


@pytest.fixture
def model_file(tmp_path):
    """Return a function (architecture, types, sizes) → (the directory that it was made of, the file)."""

    def make(architecture="llama", types=None, **sizes):
        (tmp_path / "plain").mkdir()
        directory = write_tiny_model(tmp_path / "plain", architecture, **{**SIZES, **sizes})
        return directory, convert(directory, tmp_path / "m.gguf", types or {})

    return make


@pytest.fixture
def load_from(tmp_path):
    """Return a function (file or directory, settings) → loaded model, whose memory goes in the end."""
    models = []

    def load_one(path, device=None, layout=None, **settings):
        fields = {"dtype": "float32", "tokenizer_cache": str(tmp_path / "cache"), **settings}
        wanted = as_directory(EngineSettings(model=str(path), block_size=4, **fields))
        models.append(load(wanted, device or CpuDevice(Host()), layout))
        return models[-1]

    yield load_one
    for model in models:
        model.weights.close()
