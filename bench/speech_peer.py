"""A Whisper peer in a process of its own: `PEER_PYTHON -m bench.speech_peer NAME MODEL_DIR THREADS`, see `helpers`.

NAME is faster-whisper, whose weights CTranslate2's converter rounds to int8, or openai-whisper, in float32. Runs under
the Python of the peers' environment (`speech_env`); of ours it imports the protocol alone. What is timed begins with
samples: features, the encoder, and greedy tokens with times, as either of them computes a window of a file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.helpers import answer_questions
from bench.speech_ask import Hear, Heard

Listen = Callable[[np.ndarray, Hear], Sequence[int]]
LATEST_FIRST_TIME = 50  # in steps of 20 ms: one second, the default of both
_NAMES = (  # transformers' names of tensors -> OpenAI's, in this order
    ("model.", ""),
    ("decoder.embed_tokens", "decoder.token_embedding"),
    ("embed_positions.weight", "positional_embedding"),
    ("layers.", "blocks."),
    ("self_attn_layer_norm", "attn_ln"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("self_attn.", "attn."),
    ("encoder_attn.", "cross_attn."),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
)


def faster_whisper(directory: Path, threads: int) -> Listen:
    """Return CTranslate2's way."""
    import ctranslate2  # type: ignore[import-not-found]
    from faster_whisper import WhisperModel  # type: ignore[import-not-found]

    converted = Path(tempfile.mkdtemp(prefix="dormouse-bench-")) / "model"
    ctranslate2.converters.TransformersConverter(
        str(directory), copy_files=["tokenizer.json", "preprocessor_config.json"]
    ).convert(str(converted), quantization="int8")
    model = WhisperModel(str(converted), device="cpu", compute_type="int8", cpu_threads=threads)

    def listen(samples: np.ndarray, asked: Hear) -> Sequence[int]:
        features = model.feature_extractor(samples)[:, : model.feature_extractor.nb_max_frames]
        (found,) = model.model.generate(
            model.encode(features),
            [list(asked.prompt)],
            beam_size=1,
            max_length=2 * asked.num_tokens,  # half of it is the most that it generates
            suppress_tokens=list(asked.suppressed),
            max_initial_timestamp_index=LATEST_FIRST_TIME,
            return_scores=True,
            return_no_speech_prob=True,
        )
        tokens: Sequence[int] = found.sequences_ids[0]
        return tokens

    return listen


def openai_whisper(directory: Path, threads: int) -> Listen:
    """Return the original's way."""
    import torch
    import whisper  # type: ignore[import-not-found]
    from transformers import WhisperForConditionalGeneration

    torch.set_num_threads(threads)
    module = WhisperForConditionalGeneration.from_pretrained(directory)  # nosec B615  # of a directory
    said = module.config
    model = whisper.model.Whisper(
        whisper.model.ModelDimensions(
            n_mels=said.num_mel_bins,
            n_audio_ctx=said.max_source_positions,
            n_audio_state=said.d_model,
            n_audio_head=said.encoder_attention_heads,
            n_audio_layer=said.encoder_layers,
            n_vocab=said.vocab_size,
            n_text_ctx=said.max_target_positions,
            n_text_state=said.d_model,
            n_text_head=said.decoder_attention_heads,
            n_text_layer=said.decoder_layers,
        )
    ).eval()
    model.load_state_dict(
        {_renamed(name): tensor for name, tensor in module.state_dict().items() if "proj_out" not in name}
    )

    def listen(samples: np.ndarray, asked: Hear) -> Sequence[int]:
        mels = whisper.pad_or_trim(whisper.log_mel_spectrogram(samples, said.num_mel_bins), whisper.audio.N_FRAMES)
        options = whisper.DecodingOptions(
            language="en", sample_len=asked.num_tokens, suppress_tokens=list(asked.suppressed), fp16=False
        )
        tokens: Sequence[int] = whisper.decode(model, mels, options).tokens
        return tokens

    return listen


def _renamed(name: str) -> str:
    for theirs, others in _NAMES:
        name = name.replace(theirs, others)
    return name


class Peer:
    """Hears the same samples as often as it is asked."""

    def __init__(self, name: str, directory: str, threads: str) -> None:
        made: Any = {"faster-whisper": faster_whisper, "openai-whisper": openai_whisper}[name]
        self._listen: Listen = made(Path(directory), int(threads))

    def hear(self, asked: Hear) -> Heard:
        """Return tokens and seconds."""
        samples = np.fromfile(asked.samples, np.float32)
        begun_s = time.perf_counter()
        tokens = self._listen(samples, asked)
        return Heard(list(tokens), time.perf_counter() - begun_s)


if __name__ == "__main__":
    answer_questions(Hear, Peer(*sys.argv[1:]).hear)
