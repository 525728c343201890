"""A Whisper of OpenAI's base shape and vocabulary with random weights, for those who read it in three ways.

Its answers never end by themselves: all sides compute as many tokens as they are asked for.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from dormouse_worker.model.testing_speech import write_tokenizer

NUM_TEXT, NUM_LANGUAGES, NUM_TIMES = 50_257, 99, 1501
END, START, ENGLISH = NUM_TEXT, NUM_TEXT + 1, NUM_TEXT + 2
TRANSLATE = ENGLISH + NUM_LANGUAGES
TRANSCRIBE, NO_TIMESTAMPS = TRANSLATE + 1, TRANSLATE + 5
PROMPT = (START, ENGLISH, TRANSCRIBE)
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    *(f"<|language{number}|>" for number in range(1, NUM_LANGUAGES)),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
WIDTH, LAYERS, HEADS, INNER = 512, 6, 8, 2048


def write_model(directory: Path) -> Path:
    """Write the checkpoint and its tokenizer; return the directory."""
    torch.manual_seed(0)
    vocab_size = NO_TIMESTAMPS + 1 + NUM_TIMES
    config = WhisperConfig(
        vocab_size=vocab_size,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER,
        init_std=0.06,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=START,
        suppress_tokens=[],
        begin_suppress_tokens=[END],
    )
    WhisperForConditionalGeneration(config).save_pretrained(directory)
    GenerationConfig(
        decoder_start_token_id=START,
        eos_token_id=END,
        bos_token_id=END,
        pad_token_id=END,
        max_length=config.max_target_positions,
        is_multilingual=True,
        no_timestamps_token_id=NO_TIMESTAMPS,
        suppress_tokens=[END, *range(START, NO_TIMESTAMPS)],
        begin_suppress_tokens=[END],
        max_initial_timestamp_index=50,
        lang_to_id={"<|en|>": ENGLISH},
        task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    ).save_pretrained(directory)
    WhisperFeatureExtractor().save_pretrained(directory)
    write_tokenizer(directory, NUM_TEXT, SPECIAL, NUM_TIMES)
    return directory
