"""What others raise while a model is loaded, in our words."""

from pathlib import Path

import pytest
import torch

from dormouse_worker.common.errors import InsufficientMemory, ModelInvalid, ModelNotFound
from dormouse_worker.model.attention.hook import ATTENTION_NAME
from dormouse_worker.model.foreign import foreign_errors


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (MemoryError("no more"), InsufficientMemory, r"/m: the weights do not fit into memory: no more"),
        (torch.OutOfMemoryError("full"), InsufficientMemory, r"do not fit into memory: full"),
        (KeyError(ATTENTION_NAME), ModelInvalid, "its attention is code of its own, which reads no paged cache"),
        (KeyError("else"), ModelInvalid, "/m: transformers cannot load it: KeyError: 'else'"),
        (ImportError("needs torchao"), ModelInvalid, r"needs torchao; install dormouse\[quantization\]"),
        (ImportError("needs gptqmodel"), ModelInvalid, "ImportError: needs gptqmodel$"),
        (ModelNotFound("gone"), ModelNotFound, "^gone$"),
    ],
)
def test_every_error_names_the_model_and_what_can_be_done(error, kind, message):
    with pytest.raises(kind, match=message), foreign_errors(Path("/m")):
        raise error
