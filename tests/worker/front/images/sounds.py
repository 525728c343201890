"""What a model that hears has beside its configuration; sounds as files, and transformers' own processor of them."""

import io
import json

import numpy as np
import soundfile
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2AudioProcessor, WhisperFeatureExtractor

from dormouse_worker.model.testing_hearing import MELS

RATE_HZ = 16_000
TOKENS = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]  # behind those that a tokenizer has
EXTRACTOR = WhisperFeatureExtractor(feature_size=MELS, chunk_length=1)
TEMPLATE = Qwen2AudioProcessor.default_chat_template.fget(None)


def give_ears(path):
    """Add tokens, a template and how features are made to a model's directory; return it."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens(TOKENS)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "preprocessor_config.json").write_text(json.dumps(EXTRACTOR.to_dict()))
    return path


def heard_by_transformers(path, content, sounds):
    """Return what transformers' processor makes of a turn, as tensors."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"), bos_token="<s>")
    processor = Qwen2AudioProcessor(EXTRACTOR, tokenizer)
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    floats = [samples.astype(np.float32) / 2**15 for samples in sounds]
    return processor(text=[text], audio=floats, sampling_rate=RATE_HZ, return_tensors="pt")


def noise(num_samples, seed=0):
    """Return samples of 16 bits."""
    return (np.random.default_rng(seed).standard_normal(num_samples) * 3000).astype(np.int16)


def written(samples, kind="WAV"):
    """Return a sound as a file."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, format=kind, subtype="PCM_16")
    return file.getvalue()
