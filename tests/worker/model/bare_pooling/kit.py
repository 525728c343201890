"""Why a model needs torch, files of fewer bits, and kernels that make float32 of bfloat16."""

import json

import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import EMBED
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.without_torch import why_torch
from dormouse_worker.native.library import load_variants


def widening_kernels():
    """Return the fastest variant for processors that do not multiply bfloat16."""
    return next(kernels for kernels in load_variants() if not kernels.multiplies_bfloat16)


def why(path, task=EMBED, kernels=None, **settings):
    """Return why the model at this path needs torch for a task; None = it does not."""
    files = check_model_files(path, "auto")
    return why_torch(EngineSettings(model=str(path), **settings), task, files, kernels or widening_kernels())


def halve(path):
    """Store a model's weights as bfloat16; return the path."""
    file = path / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    return change(path, dtype="bfloat16")


def widen(path):
    """Store a model's weights as float32; return the path."""
    file = path / "model.safetensors"
    save_file({name: tensor.to(torch.float32) for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    return change(path, dtype="float32")


def change(path, **words):
    """Change words of a model's config.json, or leave out those of ...; return the path."""
    written = json.loads((path / "config.json").read_text()) | words
    (path / "config.json").write_text(json.dumps({name: value for name, value in written.items() if value is not ...}))
    return path
