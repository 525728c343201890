"""The types that tensors of a GGUF file have: their names, and how many bytes a block of numbers takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NAMES: Mapping[int, str] = MappingProxyType(
    dict(enumerate(("F32", "F16", "Q4_0", "Q4_1")))
    | dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"), 6))
    | dict(enumerate(("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"), 16))
    | dict(enumerate(("I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"), 24))
    | {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}
)
BLOCKS: Mapping[str, tuple[int, int]] = (
    MappingProxyType(  # numbers of a block, and its bytes; of the types that are read
        {
            "F32": (1, 4),
            "F16": (1, 2),
            "BF16": (1, 2),
            "Q4_0": (32, 18),
            "Q4_1": (32, 20),
            "Q5_0": (32, 22),
            "Q5_1": (32, 24),
            "Q8_0": (32, 34),
            "Q4_K": (256, 144),
            "Q5_K": (256, 176),
            "Q6_K": (256, 210),
        }
    )
)
PLAIN = frozenset({"F32", "F16", "BF16"})


def row_bytes(kind: str, columns: int) -> int:
    """Return the bytes of a row of so many numbers, whole blocks."""
    numbers, num_bytes = BLOCKS[kind]
    assert columns % numbers == 0, "checked with the header"
    return columns // numbers * num_bytes
