"""OpenVINO in a process of its own: `PEER_PYTHON -m bench.vector_peer MODEL_DIR HEADS THREADS`, see `helpers`.

A BERT of the directory's weights, written in OpenVINO's own operations and compiled to compute in float32.
Texts come padded, in batches sorted by length; their vectors are means of length 1.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
from openvino import opset13 as ops
from safetensors.numpy import load_file

from bench.helpers import answer_questions
from bench.vector_ask import Embed, Embedded

PADDED_TEXTS = 32  # of one batch, as sentence-transformers has it
EPS = 1e-12


class Graph:
    """Builds the encoder."""

    def __init__(self, tensors: dict[str, np.ndarray], heads: int) -> None:
        self._tensors, self._heads = tensors, heads

    def encoder(self) -> Any:
        """Return the whole: token ids [N, L] and mask [N, L] → hidden states [N, L, H]."""
        ids, mask = (ops.parameter([-1, -1], openvino.Type.i64, name=name) for name in ("ids", "mask"))
        words = ops.gather(self._constant("embeddings.word_embeddings.weight"), ids, 0)
        length = ops.gather(ops.shape_of(ids), ops.constant(1), 0)
        places = ops.range(ops.constant(np.int64(0)), length, ops.constant(np.int64(1)), openvino.Type.i64)
        positions = ops.gather(self._constant("embeddings.position_embeddings.weight"), places, 0)
        kind = ops.constant(self._tensors["embeddings.token_type_embeddings.weight"][0])
        hidden = self._norm(ops.add(ops.add(words, kind), positions), "embeddings.LayerNorm")
        seen = ops.unsqueeze(ops.convert(mask, openvino.Type.boolean), ops.constant([1, 2]))
        for layer in range(sum(name.endswith("intermediate.dense.bias") for name in self._tensors)):
            hidden = self._layer(hidden, seen, f"encoder.layer.{layer}.")
        return openvino.Model([hidden], [ids, mask])

    def _layer(self, hidden: Any, seen: Any, begins: str) -> Any:
        rows = [
            self._split(self._linear(hidden, f"{begins}attention.self.{kind}")) for kind in ("query", "key", "value")
        ]
        attended = ops.scaled_dot_product_attention(*rows, seen)
        joined = ops.reshape(
            ops.transpose(attended, ops.constant([0, 2, 1, 3])), ops.constant([0, 0, -1]), special_zero=True
        )
        result = self._linear(joined, f"{begins}attention.output.dense")
        hidden = self._norm(ops.add(result, hidden), f"{begins}attention.output.LayerNorm")
        wide = ops.gelu(self._linear(hidden, f"{begins}intermediate.dense"), "erf")
        return self._norm(ops.add(self._linear(wide, f"{begins}output.dense"), hidden), f"{begins}output.LayerNorm")

    def _split(self, rows: Any) -> Any:
        """Return [N, heads, L, size] of [N, L, hidden]."""
        return ops.transpose(
            ops.reshape(rows, ops.constant([0, 0, self._heads, -1]), special_zero=True), ops.constant([0, 2, 1, 3])
        )

    def _linear(self, rows: Any, name: str) -> Any:
        product = ops.matmul(rows, self._constant(f"{name}.weight"), transpose_a=False, transpose_b=True)
        return ops.add(product, self._constant(f"{name}.bias"))

    def _norm(self, rows: Any, name: str) -> Any:
        even = ops.mvn(rows, ops.constant([-1]), normalize_variance=True, eps=EPS, eps_mode="inside_sqrt")
        return ops.add(ops.multiply(even, self._constant(f"{name}.weight")), self._constant(f"{name}.bias"))

    def _constant(self, name: str) -> Any:
        return ops.constant(self._tensors[name])


class Peer:
    """Embeds as often as it is asked."""

    def __init__(self, directory: str, heads: str, threads: str) -> None:
        model = Graph(load_file(Path(directory, "model.safetensors")), int(heads)).encoder()
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        self._compiled = openvino.Core().compile_model(model, "CPU", settings)

    def embed(self, asked: Embed) -> Embedded:
        """Return the seconds, and one vector to compare with."""
        begun_s = time.perf_counter()
        order = sorted(range(len(asked.texts)), key=lambda place: len(asked.texts[place]), reverse=True)
        vectors: dict[int, np.ndarray] = {}
        for start in range(0, len(order), PADDED_TEXTS):
            places = order[start : start + PADDED_TEXTS]
            vectors |= zip(places, self._vectors([asked.texts[place] for place in places]), strict=True)
        seconds = time.perf_counter() - begun_s
        return Embedded(seconds, vectors[0].tolist())

    def _vectors(self, texts: list[list[int]]) -> np.ndarray:
        ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        hidden = self._compiled([ids, mask])[0]
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        vectors: np.ndarray = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return vectors


if __name__ == "__main__":
    answer_questions(Embed, Peer(*sys.argv[1:]).embed)
