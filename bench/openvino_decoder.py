"""A decoder of Llama's or Qwen2's kind in OpenVINO's operations, as its exporters write it, in bfloat16 or fewer bits.

int8: asymmetric, a scale and a zero for each output. int4: symmetric, a scale for 64 inputs, the head in int8. These
are NNCF's INT8_ASYM and INT4_SYM; OpenVINO's plug-in for processors knows the pattern and keeps the weights small.
none: the checkpoint's bfloat16. Keys and values are states; the plug-in joins them with attention, and OpenVINO GenAI
puts a paged cache in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
from openvino import opset6
from openvino import opset13 as ops

from bench.plain_tensors import Floats, PlainTensors, rotations

GROUP = 64
POSITIONS = 4096


class Decoder:
    """Builds the graph: ids and their positions [B, L] → logits [B, V] of the last ones; for GenAI [B, L, V] of all."""

    def __init__(self, tensors: PlainTensors, config: Mapping[str, Any], method: str, *, genai: bool = False) -> None:
        self._tensors, self._config, self._method, self._genai = tensors, config, method, genai
        self._heads, self._kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self._size = config["hidden_size"] // self._heads
        self._sinks: list[Any] = []

    def build(self) -> Any:
        """Return the model."""
        ids, positions = _input("input_ids", [-1, -1]), _input("position_ids", [-1, -1])
        beams = _input("beam_idx", [-1], openvino.Type.i32)
        embeddings = _as_stored(self._tensors.halves("model.embed_tokens.weight"))
        hidden = ops.convert(ops.gather(embeddings, ids, 0), "f32")
        halves = rotations(self._config, self._size, POSITIONS)
        tables = [np.concatenate((half, half), 1) for half in halves]  # both halves of a head turn alike
        turned = [ops.unsqueeze(ops.gather(ops.constant(table), positions, 0), 1) for table in tables]
        for layer in range(self._config["num_hidden_layers"]):
            hidden = self._layer(hidden, turned, beams, f"model.layers.{layer}.")
        rows = self._norm(hidden, "model.norm")
        rows = rows if self._genai else ops.gather(rows, ops.constant(-1), 1)  # GenAI chooses rows by itself
        head = "lm_head" if "lm_head.weight" in self._tensors else "model.embed_tokens"
        logits = ops.matmul(rows, self._weight(head, halves=False), transpose_a=False, transpose_b=True)
        logits.output(0).get_tensor().set_names({"logits"})
        return openvino.Model([ops.result(logits)], self._sinks, [ids, positions, beams])

    def _layer(self, hidden: Any, turned: list[Any], beams: Any, begins: str) -> Any:
        normed = self._norm(hidden, f"{begins}input_layernorm")
        query, key = (
            self._turn(self._split(self._linear(normed, f"{begins}self_attn.{name}_proj"), heads), turned)
            for name, heads in (("q", self._heads), ("k", self._kv_heads))
        )
        value = self._split(self._linear(normed, f"{begins}self_attn.v_proj"), self._kv_heads)
        keys, values = (
            self._repeated(self._kept(rows, beams, f"{begins}{name}"))
            for name, rows in (("key", key), ("value", value))
        )
        mask = ops.constant(np.float32(0)) if self._genai else None  # none, said in the way that GenAI looks for
        attended = ops.transpose(
            ops.scaled_dot_product_attention(query, keys, values, mask, causal=True), ops.constant([0, 2, 1, 3])
        )
        joined = ops.reshape(attended, ops.constant([0, 0, -1]), special_zero=True)
        hidden = ops.add(hidden, self._linear(joined, f"{begins}self_attn.o_proj"))
        normed = self._norm(hidden, f"{begins}post_attention_layernorm")
        gate = ops.swish(self._linear(normed, f"{begins}mlp.gate_proj"))
        wide = ops.multiply(gate, self._linear(normed, f"{begins}mlp.up_proj"))
        return ops.add(hidden, self._linear(wide, f"{begins}mlp.down_proj"))

    def _kept(self, rows: Any, beams: Any, name: str) -> Any:
        """Return [B, heads, T, size] of what was there before and rows [B, heads, L, size]."""
        info = openvino.op.util.VariableInfo()
        info.data_shape = openvino.PartialShape([-1, self._kv_heads, -1, self._size])
        info.data_type, info.variable_id = openvino.Type.f32, name
        variable = openvino.op.util.Variable(info)
        batch = ops.gather(ops.shape_of(rows), ops.constant([0]), 0)
        shape = ops.concat([batch, ops.constant(np.array([self._kv_heads, 0, self._size], np.int64))], 0)
        past = opset6.read_value(ops.broadcast(ops.constant(np.float32(0)), shape), variable)
        whole = ops.concat([ops.gather(past, beams, 0), rows], 2)
        self._sinks.append(opset6.assign(whole, variable))
        return whole

    def _repeated(self, rows: Any) -> Any:
        """Return [B, heads, T, size] for all heads of queries."""
        times = self._heads // self._kv_heads
        shape = ops.concat(
            [
                ops.gather(ops.shape_of(rows), ops.constant([0, 1]), 0),
                ops.constant(np.array([times], np.int64)),
                ops.gather(ops.shape_of(rows), ops.constant([2, 3]), 0),
            ],
            0,
        )
        wide = ops.broadcast(ops.unsqueeze(rows, 2), shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, ops.constant([0, self._heads, -1, self._size]), special_zero=True)

    def _split(self, rows: Any, heads: int) -> Any:
        """Return [B, heads, L, size] of [B, L, outputs]."""
        apart = ops.reshape(rows, ops.constant([0, 0, heads, self._size]), special_zero=True)
        return ops.transpose(apart, ops.constant([0, 2, 1, 3]))

    def _turn(self, rows: Any, turned: list[Any]) -> Any:
        cosine, sine = turned
        first, second = ops.variadic_split(rows, 3, [self._size // 2, self._size // 2]).outputs()
        other = ops.concat([ops.multiply(second, ops.constant(np.float32(-1))), first], -1)
        return ops.add(ops.multiply(rows, cosine), ops.multiply(other, sine))

    def _norm(self, rows: Any, name: str) -> Any:
        mean = ops.reduce_mean(ops.power(rows, ops.constant(np.float32(2))), ops.constant([-1]), keep_dims=True)
        root = ops.sqrt(ops.add(mean, ops.constant(np.float32(self._config["rms_norm_eps"]))))
        scaled = ops.multiply(rows, ops.divide(ops.constant(np.float32(1)), root))
        return ops.multiply(scaled, ops.constant(self._tensors[f"{name}.weight"]))

    def _linear(self, rows: Any, name: str) -> Any:
        product = ops.matmul(rows, self._weight(name), transpose_a=False, transpose_b=True)
        if f"{name}.bias" not in self._tensors:
            return product
        return ops.add(product, ops.constant(self._tensors[f"{name}.bias"]))

    def _weight(self, name: str, *, halves: bool = True) -> Any:
        """Return [outputs, inputs] as the method stores them; without `halves` never in 4 bits."""
        if self._method == "none":
            return ops.convert(_as_stored(self._tensors.halves(f"{name}.weight")), "f32")
        weight = self._tensors[f"{name}.weight"]
        return _halves(weight) if halves and self._method == "int4" else _bytes(weight)


def _input(name: str, shape: list[int], kind: Any = openvino.Type.i64) -> Any:
    made = ops.parameter(shape, kind, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def _as_stored(halves: np.ndarray[Any, Any]) -> Any:
    """Return bfloat16 as it lies in the file."""
    tensor = openvino.Tensor(openvino.Type.bf16, openvino.Shape(halves.shape))
    tensor.data.view(np.uint16)[:] = halves
    return openvino.op.Constant(tensor, shared_memory=False)


def _bytes(weight: Floats) -> Any:
    least, most = weight.min(1, keepdims=True), weight.max(1, keepdims=True)
    scale = (most - least) / 255
    zero = np.rint(-least / scale)
    numbers = (np.rint(weight / scale) + zero).clip(0, 255).astype(np.uint8)
    shifted = ops.subtract(
        ops.convert(ops.constant(numbers), "f32"), ops.convert(ops.constant(zero.astype(np.uint8)), "f32")
    )
    return ops.multiply(shifted, ops.constant(scale))


def _halves(weight: Floats) -> Any:
    groups = weight.reshape(len(weight), -1, GROUP)
    scale = np.abs(groups).max(2, keepdims=True) / 7
    numbers = (np.rint(groups / scale).clip(-8, 7).astype(np.int8) & 15).view(np.uint8).reshape(-1, 2)
    both = numbers[:, 0] | (numbers[:, 1] << 4)
    tensor = openvino.Tensor(both, openvino.Shape(groups.shape), openvino.Type.i4)
    stored = ops.convert(openvino.op.Constant(tensor, shared_memory=False), "f32")
    return ops.reshape(ops.multiply(stored, ops.constant(scale)), ops.constant(list(weight.shape)), special_zero=False)
