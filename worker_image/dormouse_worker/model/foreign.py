"""What torch and transformers raise while a model is loaded, in words that somebody can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dormouse_worker.common.errors import InsufficientMemory, ModelInvalid, WorkerError
from dormouse_worker.model.attention.hook import ATTENTION_NAME

QUANTIZATION_PACKAGES = ("torchao",)  # those that the extra `quantization` installs


@contextmanager
def foreign_errors(path: Path) -> Iterator[None]:
    """Raise InsufficientMemory or ModelInvalid, naming the model's directory, for all that is no WorkerError."""
    try:
        yield
    except WorkerError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InsufficientMemory(f"{path}: the weights do not fit into memory: {error}") from error
    except Exception as error:  # whatever the library says about these files
        raise ModelInvalid(f"{path}: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    chooses_among_its_own_attentions = isinstance(error, KeyError) and error.args == (ATTENTION_NAME,)
    if chooses_among_its_own_attentions:
        return "its attention is code of its own, which reads no paged cache"
    told = f"transformers cannot load it: {type(error).__name__}: {error}"
    lacks_a_package = isinstance(error, ImportError) and any(name in str(error) for name in QUANTIZATION_PACKAGES)
    return f"{told}; install dormouse[quantization]" if lacks_a_package else told
