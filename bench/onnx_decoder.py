"""A decoder of Llama's or Qwen2's kind as onnxruntime-genai's model builder writes it, with weights of 4 bits.

RTN in blocks of 32 inputs, symmetric, also the head; rows are rounded to 8 bits (accuracy level 4). Embeddings are
float32. Logits are those of the last token alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx  # type: ignore[import-not-found]
from onnx import TensorProto, helper, numpy_helper

from bench.plain_tensors import Floats, PlainTensors, rotations

BLOCK, LEVEL = 32, 4
POSITIONS = 4096
OPERATIONS = "com.microsoft"  # the domain of these:
OWN_KINDS = frozenset({"GroupQueryAttention", "MatMulNBits", "SkipSimplifiedLayerNormalization"})


class OnnxDecoder:
    """Builds the graph and writes a directory that onnxruntime-genai loads."""

    def __init__(self, tensors: PlainTensors, config: Mapping[str, Any]) -> None:
        self._tensors, self._config = tensors, config
        self._heads, self._kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self._layers, self._hidden = config["num_hidden_layers"], config["hidden_size"]
        self._size = self._hidden // self._heads
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def write(self, folder: Path, threads: int) -> None:
        """Write model.onnx, its data and genai_config.json."""
        graph = helper.make_graph(self._compute(), "decoder", self._inputs(), self._outputs(), self._constants)
        versions = [helper.make_opsetid("", 21), helper.make_opsetid(OPERATIONS, 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=10)
        onnx.save_model(model, folder / "model.onnx", save_as_external_data=True, location="model.data")
        (folder / "genai_config.json").write_text(json.dumps(self._settings(threads)), "utf-8")

    def _inputs(self) -> list[Any]:
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
        mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])
        return [ids, mask, *self._caches("past_key_values", "past")]

    def _outputs(self) -> list[Any]:
        shape = ["batch", 1, self._config["vocab_size"]]
        return [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape), *self._caches("present", "total")]

    def _caches(self, name: str, length: str) -> list[Any]:
        shape = ["batch", self._kv_heads, length, self._size]
        names = [f"{name}.{layer}.{part}" for layer in range(self._layers) for part in ("key", "value")]
        return [helper.make_tensor_value_info(one, TensorProto.FLOAT, shape) for one in names]

    def _compute(self) -> list[Any]:
        one = self._constant("one", np.array([1], np.int64))
        length = self._node("ReduceSum", ["attention_mask", one])
        before = self._node("Cast", [self._node("Sub", [length, one])], to=TensorProto.INT32)
        shape = self._node("Shape", ["attention_mask"])
        total = self._node("Gather", [shape, self._constant("at", np.array(1, np.int64))])
        lengths = [before, self._node("Cast", [total], to=TensorProto.INT32), *self._turns()]
        rows = self._node("Gather", [self._tensor("model.embed_tokens.weight"), "input_ids"])
        added = ""
        for layer in range(self._layers):
            rows, added = self._layer(rows, added, lengths, layer)
        normed, _ = self._norm(rows, added, "model.norm")
        last = self._node("Gather", [normed, self._constant("last", np.array([-1], np.int64))], axis=1)
        head = "lm_head" if "lm_head.weight" in self._tensors else "model.embed_tokens"
        self._node("Identity", [self._linear(last, [head])], outputs=["logits"])
        return self._nodes

    def _layer(self, rows: str, added: str, lengths: Sequence[str], layer: int) -> tuple[str, str]:
        """Return the residual stream and what is to be added to it."""
        begins = f"model.layers.{layer}."
        normed, rows = self._norm(rows, added, f"{begins}input_layernorm")
        joined = self._linear(normed, [f"{begins}self_attn.{name}_proj" for name in "qkv"])
        caches = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        attended = self._node(
            "GroupQueryAttention",
            [joined, "", "", *caches, *lengths],
            outputs=[f"attended.{layer}", f"present.{layer}.key", f"present.{layer}.value"],
            num_heads=self._heads,
            kv_num_heads=self._kv_heads,
            do_rotary=1,
        )
        attended = self._linear(attended, [f"{begins}self_attn.o_proj"])
        normed, rows = self._norm(rows, attended, f"{begins}post_attention_layernorm")
        gate = self._linear(normed, [f"{begins}mlp.gate_proj"])
        gate = self._node("Mul", [gate, self._node("Sigmoid", [gate])])
        wide = self._node("Mul", [gate, self._linear(normed, [f"{begins}mlp.up_proj"])])
        return rows, self._linear(wide, [f"{begins}mlp.down_proj"])

    def _norm(self, rows: str, added: str, name: str) -> tuple[str, str]:
        """Return the norm of the sum, and the sum."""
        weight, epsilon = self._tensor(f"{name}.weight"), self._config["rms_norm_eps"]
        if not added:
            return self._node("SimplifiedLayerNormalization", [rows, weight], axis=-1, epsilon=epsilon), rows
        outputs = [f"{name}.normed", "", "", f"{name}.sum"]
        self._node("SkipSimplifiedLayerNormalization", [rows, added, weight], outputs=outputs, epsilon=epsilon)
        return outputs[0], outputs[3]

    def _linear(self, rows: str, names: Sequence[str]) -> str:
        """Return the products of rows with maps that lie behind each other."""
        weight = np.concatenate([self._tensors[f"{name}.weight"] for name in names])
        numbers, scales = _rounded(weight)
        named = [self._constant(f"{names[0]}.numbers", numbers), self._constant(f"{names[0]}.scales", scales)]
        sizes = {"N": weight.shape[0], "K": weight.shape[1], "bits": 4, "block_size": BLOCK, "accuracy_level": LEVEL}
        product = self._node("MatMulNBits", [rows, *named], **sizes)
        if f"{names[0]}.bias" not in self._tensors:
            return product
        bias = np.concatenate([self._tensors[f"{name}.bias"] for name in names])
        return self._node("Add", [product, self._constant(f"{names[0]}.bias", bias)])

    def _turns(self) -> list[str]:
        """Return cosines and sines [positions, size / 2]."""
        parts = zip(("cosines", "sines"), rotations(self._config, self._size, POSITIONS), strict=True)
        return [self._constant(name, part) for name, part in parts]

    def _tensor(self, name: str) -> str:
        return self._constant(name, self._tensors[name])

    def _constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attributes: Any) -> str:
        """Add an operation and return its first output."""
        domain = OPERATIONS if kind in OWN_KINDS else ""
        made = list(outputs) or [f"{kind}.{len(self._nodes)}"]
        self._nodes.append(helper.make_node(kind, list(inputs), made, domain=domain, **attributes))
        return made[0]

    def _settings(self, threads: int) -> dict[str, Any]:
        past, present = (
            {f"{when}_{part}_names": f"{name}.%d.{part}" for part in ("key", "value")} for when, name in _CACHES
        )
        decoder = {
            "filename": "model.onnx",
            "head_size": self._size,
            "hidden_size": self._hidden,
            "num_attention_heads": self._heads,
            "num_hidden_layers": self._layers,
            "num_key_value_heads": self._kv_heads,
            "session_options": {"intra_op_num_threads": threads, "provider_options": []},
            "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **past},
            "outputs": {"logits": "logits", **present},
        }
        ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
        model = {"type": self._config["model_type"], "context_length": POSITIONS, "decoder": decoder, **ids}
        search = {"max_length": POSITIONS, "do_sample": False, "past_present_share_buffer": True}
        return {"model": {**model, "vocab_size": self._config["vocab_size"]}, "search": search}


_CACHES = (("past", "past_key_values"), ("present", "present"))


def _rounded(weight: Floats) -> tuple[np.ndarray[Any, Any], Floats]:
    """Return numbers of 4 bits uint8 [outputs, blocks, 16], two in a byte, and scales [outputs, blocks]."""
    groups = weight.reshape(len(weight), -1, BLOCK)
    scales = np.abs(groups).max(2) / 7
    numbers = (np.rint(groups / scales[..., None]) + 8).clip(0, 15).astype(np.uint8)
    return numbers[..., ::2] | (numbers[..., 1::2] << 4), scales.astype(np.float32)
