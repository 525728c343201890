"""Which kinds of rotary embeddings have the same numbers on every machine, and what each is told. No numpy."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PLAIN = "default"
PARAMETERS: Mapping[str, frozenset[str]] = MappingProxyType(  # of each kind that is known here, all of them numbers
    {
        PLAIN: frozenset({"rope_theta"}),
        "linear": frozenset({"rope_theta", "factor"}),
        "llama3": frozenset(
            {"rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
        ),
    }
)
