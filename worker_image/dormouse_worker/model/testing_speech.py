"""Whisper models with random weights, written as ordinary Hugging Face directories, and what transformers hears."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from dormouse_worker.model.testing_reference import read_reference

RATE_HZ = 16_000
NUM_BYTES = 256  # tokens of text, where nothing else is asked for
_SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
SHAPES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "small": {"d_model": 32, "layers": 2, "heads": 4, "ffn": 48, "source": 100, "target": 64, "text": NUM_BYTES},
        "tiny": {"d_model": 384, "layers": 4, "heads": 6, "ffn": 1536, "source": 1500, "target": 448, "text": 50_257},
        "base": {"d_model": 512, "layers": 6, "heads": 8, "ffn": 2048, "source": 1500, "target": 448, "text": 50_257},
    }
)  # small hears windows of two seconds; the others are OpenAI's


def write_whisper(
    directory: Path, shape: str = "small", *, seed: int = 0, is_multilingual: bool = True, **overrides: Any
) -> Path:
    """Write config, safetensors, generation config, features and a byte-level tokenizer; return the directory."""
    sizes = SHAPES[shape]
    ids = {name: sizes["text"] + place for place, name in enumerate(_SPECIAL)}
    config = _config(sizes, ids, overrides)
    torch.manual_seed(seed)
    module = WhisperForConditionalGeneration(config).eval()
    module.save_pretrained(directory)
    _generation(sizes, ids, is_multilingual=is_multilingual).save_pretrained(directory)
    WhisperFeatureExtractor(chunk_length=sizes["source"] // 50).save_pretrained(directory)
    write_tokenizer(directory, sizes["text"], _SPECIAL, sizes["source"] + 1)
    return directory


def heard(directory: Path, sound: npt.NDArray[np.float32], **arguments: Any) -> list[Mapping[str, Any]]:
    """Return the segments that transformers' `generate` hears, computed in float32."""
    module = read_reference(WhisperForConditionalGeneration, directory)
    extractor = WhisperFeatureExtractor.from_pretrained(directory)  # nosec B615  # of a directory
    is_long = len(sound) > extractor.n_samples
    how: Any = {"truncation": False, "padding": "longest", "return_attention_mask": True} if is_long else {}
    inputs = extractor(sound, sampling_rate=RATE_HZ, return_tensors="pt", **how)
    told = module.generate(**inputs, return_timestamps=True, return_segments=True, **arguments)
    segments: list[Mapping[str, Any]] = told["segments"][0]
    return segments


def _config(sizes: Mapping[str, int], ids: Mapping[str, int], overrides: Mapping[str, Any]) -> WhisperConfig:
    eos, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    made: dict[str, Any] = {
        "vocab_size": ids["<|notimestamps|>"] + 1 + sizes["source"] + 1,
        "d_model": sizes["d_model"],
        "encoder_layers": sizes["layers"],
        "decoder_layers": sizes["layers"],
        "encoder_attention_heads": sizes["heads"],
        "decoder_attention_heads": sizes["heads"],
        "encoder_ffn_dim": sizes["ffn"],
        "decoder_ffn_dim": sizes["ffn"],
        "max_source_positions": sizes["source"],
        "max_target_positions": sizes["target"],
        "init_std": 0.3 if sizes["d_model"] < 100 else 0.06,
        "pad_token_id": eos,
        "bos_token_id": eos,
        "eos_token_id": eos,
        "decoder_start_token_id": start,
        "suppress_tokens": [],
        "begin_suppress_tokens": [eos],
    }
    return WhisperConfig(**(made | dict(overrides)))


def _generation(sizes: Mapping[str, int], ids: Mapping[str, int], *, is_multilingual: bool) -> GenerationConfig:
    languages = {name: ids[name] for name in ("<|en|>", "<|de|>")}
    tasks = {name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")}
    quiet = [ids[name] for name in ("<|startoftranscript|>", *languages, "<|startoflm|>", "<|startofprev|>")]
    return GenerationConfig(
        decoder_start_token_id=ids["<|startoftranscript|>"],
        eos_token_id=ids["<|endoftext|>"],
        bos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        max_length=sizes["target"],
        is_multilingual=is_multilingual,
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        suppress_tokens=[3, 7, *quiet, *tasks.values(), ids["<|nospeech|>"]],
        begin_suppress_tokens=[ids["<|endoftext|>"]],
        max_initial_timestamp_index=min(50, sizes["source"] // 2),
        return_timestamps=False,
        **({"lang_to_id": languages, "task_to_id": tasks} if is_multilingual else {}),
    )


def write_tokenizer(directory: Path, num_text: int, special: Sequence[str], num_times: int) -> None:
    """Write a byte-level tokenizer: tokens of text, then special ones, then times."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: place for place, letter in enumerate(letters)}
    words |= {f"w{place}": place for place in range(len(letters), num_text)}
    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in special])
    made.add_tokens([AddedToken(f"<|{place * 0.02:.2f}|>") for place in range(num_times)])
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer"}))
