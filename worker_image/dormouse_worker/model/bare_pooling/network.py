"""Which networks make vectors, labels or scores without torch: all kinds, as one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from dormouse_worker.model.bare.config import FAMILIES as DECODERS
from dormouse_worker.model.bare_pooling import modern, nomic
from dormouse_worker.model.bare_pooling.config import EncoderConfig, read_encoder
from dormouse_worker.model.bare_pooling.decoders import read_decoder
from dormouse_worker.model.bare_pooling.families import FAMILIES
from dormouse_worker.model.bare_pooling.gated import GatedConfig
from dormouse_worker.model.lean.unfit import Unfit

NetworkConfig = EncoderConfig | GatedConfig


class _Read(Protocol):
    def __call__(
        self, config: Mapping[str, Any], names: Collection[str], *, has_head: bool = False
    ) -> NetworkConfig | Unfit:
        """Return the sizes of a network of this kind, or why transformers has to read it."""


def _read_encoder(
    config: Mapping[str, Any], names: Collection[str], *, has_head: bool = False
) -> EncoderConfig | Unfit:
    del names  # an encoder's begin as its architecture says
    return read_encoder(config, has_head=has_head)


READERS: Mapping[str, _Read] = MappingProxyType(  # by model_type
    {
        **dict.fromkeys(FAMILIES, _read_encoder),
        **dict.fromkeys(DECODERS, read_decoder),
        modern.KIND: modern.read_modern,
        nomic.KIND: nomic.read_nomic,
    }
)


def read_network(config: Mapping[str, Any], names: Collection[str], *, has_head: bool = False) -> NetworkConfig | Unfit:
    """Return the sizes of a network, or of one with a classifier's head; or why transformers has to read it.

    `names` are those of the files' tensors.
    """
    kind = config.get("model_type")
    read = READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        return Unfit(f"config.json describes none of {', '.join(READERS)}")
    return read(config, names, has_head=has_head)
