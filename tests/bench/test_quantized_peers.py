"""Weights of few bits beside other programs: the files that these get, and the rows that come of the answers."""

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from bench.gguf_model import write_gguf
from bench.plain_tensors import PlainTensors
from bench.quantized_peers import LLAMA, METHODS_OF_PEERS, ONNX, OPENVINO, alone_rows, draw_answers, wide_rows
from bench.replies import Reply

CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "vocab_size": 300,
}


def write_model(directory):
    draw = torch.Generator().manual_seed(2)
    shapes = {
        "model.embed_tokens.weight": (300, 64),
        "model.norm.weight": (64,),
        "model.layers.0.self_attn.q_proj.weight": (64, 64),
        "model.layers.0.self_attn.q_proj.bias": (64,),
        "model.layers.0.mlp.down_proj.weight": (64, 96),
        "model.layers.0.input_layernorm.weight": (64,),
    }
    tensors = {name: torch.randn(shape, generator=draw).bfloat16() for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return tensors


def test_tensors_are_read_without_torch_as_they_are(tmp_path):
    expected, found = write_model(tmp_path), PlainTensors(tmp_path)
    assert set(found) == expected.keys()
    assert "model.norm.bias" not in found
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor.float().numpy())


def test_a_gguf_file_has_the_models_weights_under_its_names(tmp_path):
    expected, file = write_model(tmp_path), tmp_path / "m.gguf"
    write_gguf(PlainTensors(tmp_path), CONFIG, "Q4_0", file)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    assert {name: tensor.tensor_type.name for name, tensor in found.items()} == {
        "token_embd.weight": "Q8_0",
        "output_norm.weight": "F32",
        "blk.0.attn_q.weight": "Q4_0",
        "blk.0.attn_q.bias": "F32",
        "blk.0.ffn_down.weight": "Q4_0",
        "blk.0.attn_norm.weight": "F32",
    }
    down = found["blk.0.ffn_down.weight"]
    made = gguf.dequantize(down.data, down.tensor_type)
    assert np.abs(made - expected["model.layers.0.mlp.down_proj.weight"].float().numpy()).max() < 0.4
    np.testing.assert_array_equal(found["output_norm.weight"].data, expected["model.norm.weight"].float().numpy())


def answers(first_s, token_s):
    return [[Reply([1, 2, 3], 0.0, first_s, first_s + 2 * token_s)]]


def test_each_engine_stands_beside_those_of_as_many_bits():
    laps = {"int8": answers(0.1, 0.02), "int4": answers(0.2, 0.01)}
    laps |= {f"{LLAMA} {method}": answers(0.4, 0.04) for method in METHODS_OF_PEERS}
    laps |= {f"{OPENVINO} {method}": answers(0.1, 0.01) for method in METHODS_OF_PEERS}
    laps[f"{ONNX} int4"] = answers(0.3, 0.012)
    rows = {row.what: row for row in [*alone_rows(laps), *wide_rows(laps)]}
    ahead, behind = (
        rows[f"time per output token W2, q05 int8 beside {peer}"] for peer in (f"{LLAMA} Q8_0", f"{OPENVINO} int8")
    )
    assert (round(ahead.ours), round(ahead.peer), ahead.goal.holds(ahead.ours, ahead.peer)) == (20, 40, True)
    assert (round(behind.peer), behind.goal.holds(behind.ours, behind.peer)) == (10, False)
    assert round(rows[f"time to first token W2, q05 int4 beside {LLAMA} Q4_0"].peer) == 400
    near = rows[f"time per output token W2, q05 int4 beside {ONNX} int4"]
    assert (round(near.peer), near.goal.holds(near.ours, near.peer)) == (12, False)
    assert f"time per output token W2, q05 int8 beside {ONNX} int8" not in rows
    assert round(rows[f"W4 of 32 out, q05 int8 beside {OPENVINO} int8"].ours, 1) == 21.4


def test_the_picture_has_a_bar_for_each_engine():
    picture = draw_answers({"bf16": answers(0.1, 0.02), f"{LLAMA} int4": answers(0.4, 0.04)})
    assert "llama.cpp Q4_0" in picture
    assert "180 ms" not in picture
    assert "140 ms" in picture
