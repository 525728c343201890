"""Tensors of the files that a model has no place for, or of a type that it does not compute with: harmless, or refused.

transformers leaves the first out and converts the second without a word, and the model says something else then. What
is known to be computed anew, or to belong to something beside the language model, may stay; all else is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor

logger = logging.getLogger(__name__)

Stored = Mapping[str, StoredTensor]
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_KNOWN = re.compile(
    r"(^|\.)(original_)?inv_freq$"  # frequencies are computed
    r"|(^|\.)position_ids$"  # 0, 1, 2, …
    r"|\.causal_mask$"
    r"|\.(k|v|kv)_scale$"  # of a cache in 8 bits, which ours is not
    r"|\._extra_state$"  # what a trainer keeps beside a layer
    r"|(^|\.)mtp(_layers|_block|_\w+)?\."  # heads that guess further tokens
    r"|(^|\.)pooler\.|(^|\.)seq_relationship\."  # answers about whole texts
)
_BESIDE = re.compile(
    r"(^|\.)(visual|vision_\w+|image_\w+|audio_\w+|speech_\w+|mm_projector|multi_modal_projector|talker|code2wav)\."
)
_MASK = re.compile(r"(attn|attention)\.(bias|masked_bias)$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_QUANTIZED = re.compile(
    r"[._](weight_scale(_inv)?|input_scale|activation_scale|qweight|qzeros|scales|g_idx|absmax|quant_map|quant_state\S*"
    r"|weight_packed|weight_shape|SCB|weight_format|blocks|zero_point)$"
)


class Places:
    """Knows which names a module has, and what may lie beside them. Holds none of its tensors."""

    def __init__(self, module: Any) -> None:
        """Take a module, or one without weights, of transformers."""
        base = getattr(module, module.base_model_prefix, module)
        self._title = type(module).__name__
        self._roots = {name for part in (module, base) for name, _ in part.named_children()}
        states = module.state_dict()
        self._computed = {name for name, _ in module.named_buffers()} - states.keys()
        self._integers = {_last(name) for name, tensor in states.items() if not tensor.is_floating_point()}
        config = module.config.get_text_config()
        self._num_layers = int(getattr(config, "num_hidden_layers", 0) or 0)
        self._num_guessing = int(getattr(config, "num_nextn_predict_layers", 0) or 0)
        patterns: Collection[str] = module._keys_to_ignore_on_load_unexpected or ()  # noqa: SLF001  # nothing public
        self._ignored = [re.compile(pattern) for pattern in patterns]

    def check_types(self, stored: Stored) -> None:
        """Raise ModelInvalid for integers and 8-bit floats in the place of a float. Not for quantized models."""
        for name, tensor in sorted(stored.items()):
            is_wrong = tensor.dtype not in FLOATS and _last(name) not in self._integers
            if is_wrong and self._is_within(name) and not self._is_harmless(name, tensor):
                raise ModelInvalid(
                    f"{tensor.file}: tensor {name} is {_told(tensor)}, where {self._title} computes with floats; if "
                    "the weights are quantized, config.json has lost its quantization_config: copy config.json again"
                )

    def check_strangers(self, names: Iterable[str], stored: Stored) -> None:
        """Raise ModelInvalid for the first of these names that lies within the model and is not known to be harmless.

        `names` are those without a place, as transformers renamed them; `stored` finds their files.
        """
        find = _finder(stored)
        strangers = [name for name in sorted(names) if not self._is_harmless(name, find(name))]
        within = [name for name in strangers if self._is_within(name)]
        if within:
            raise ModelInvalid(self._explain(within, find(within[0])))
        if strangers:
            logger.warning(
                "%d tensors of the files are not part of %s and stay unused: %s",
                len(strangers),
                self._title,
                ", ".join(strangers[:3]),
            )

    def _explain(self, names: list[str], tensor: StoredTensor | None) -> str:
        name = names[0]
        where = "" if tensor is None else f"{tensor.file}: "
        what = "" if tensor is None else f", {_told(tensor)},"
        return (
            f"{where}tensor {name}{what} has no place in the {self._title} that config.json describes, and "
            f"{len(names) - 1} more have none: without them it would say something else; {self._remedy(name)}"
        )

    def _remedy(self, name: str) -> str:
        layer = _LAYER.search(name)
        if layer and int(layer[1]) >= self._num_layers:
            why = f"num_hidden_layers is {self._num_layers} there"
        elif _QUANTIZED.search(name):
            why = "it has lost its quantization_config"
        elif name.endswith(".bias"):
            why = "it may lack attention_bias, mlp_bias or their like"
        else:
            why = "it belongs to another model"
        return f"copy config.json again ({why}), or take the tensor out of the files"

    def _is_within(self, name: str) -> bool:
        return name.partition(".")[0] in self._roots and _BESIDE.search(name) is None

    def _is_harmless(self, name: str, tensor: StoredTensor | None) -> bool:
        if name in self._computed or _KNOWN.search(name) or any(pattern.search(name) for pattern in self._ignored):
            return True
        layer = _LAYER.search(name)
        if layer and self._num_layers <= int(layer[1]) < self._num_layers + self._num_guessing:
            return True
        return tensor is not None and _is_mask(name, tensor.shape)


def _is_mask(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether it says who sees whom: [1, 1, n, n], or one number for those who do not."""
    found = _MASK.search(name)
    if found is None:
        return False
    if found[2] == "masked_bias":
        return shape in ((), (1,))
    return len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3]


def _finder(stored: Stored) -> Callable[[str], StoredTensor | None]:
    """Return a function from a name, which may have gained or lost prefixes, to what lies in the files."""

    def find(name: str) -> StoredTensor | None:
        exact = stored.get(name)
        if exact is not None:
            return exact
        alike = (tensor for other, tensor in stored.items() if name.endswith(f".{other}") or other.endswith(f".{name}"))
        return next(alike, None)

    return find


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _told(tensor: StoredTensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
