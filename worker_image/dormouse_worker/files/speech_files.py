"""What the files of a Whisper checkpoint say: its sizes, and which tokens mean what. Reads JSON only.

A decoder's prompt is [<|startofprev|> and what was said before,] <|startoftranscript|>, of multilingual models language
and task, and <|notimestamps|> where none are wanted. Tokens from `timestamp_begin` on are times, 20 ms apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.json_files import read_object

LISTENER = "WhisperForConditionalGeneration"
FRAMES_A_POSITION = 2  # of features, to one of the encoder's
SECONDS_A_TIMESTAMP = 0.02
FRAMES_A_SECOND = 100
# What `preprocessor_config.json` may say: features are made by code of ours, for these numbers.
_FEATURES: dict[str, object] = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160}
_DEFAULT_EOS = 50_257


@dataclass(frozen=True, slots=True)
class SpeechSpec:
    """A Whisper model by its files."""

    num_mels: int
    max_source_positions: int  # of the encoder
    max_target_positions: int  # of the decoder: prompt and output together
    vocab_size: int
    start: int  # <|startoftranscript|>
    eos: int
    no_timestamps: int
    previous: int | None  # <|startofprev|>
    languages: Mapping[str, int]  # code → token; {} of a model that knows English only
    tasks: Mapping[str, int]
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]  # not the first token of an answer
    max_initial_timestamp: int | None  # in steps

    @property
    def window_frames(self) -> int:
        """Return how many frames of features the encoder takes at once."""
        return self.max_source_positions * FRAMES_A_POSITION

    @property
    def timestamp_begin(self) -> int:
        """Return the token of 0.00 seconds."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """Return the token that says that nobody speaks."""
        return self.no_timestamps - 1

    @property
    def bytes_per_token(self) -> int:
        """Return how many bytes a token has where the compression of tokens is measured, as transformers does."""
        return (self.vocab_size.bit_length() - 1) // 8 + 1

    @property
    def has_timestamps(self) -> bool:
        """Return whether the vocabulary has a token for each position of a window."""
        return self.vocab_size > self.timestamp_begin + self.max_source_positions


def hears(config: Mapping[str, Any]) -> bool:
    """Return whether the architecture turns sound into text in a way that is known."""
    return LISTENER in (config.get("architectures") or ())


def read_speech(path: Path) -> SpeechSpec:
    """Read the model's directory. Raises ModelInvalid naming file and field."""
    config, said = read_object(path / "config.json"), read_object(path / "generation_config.json")
    check_features(path / "preprocessor_config.json", read_object(path / "preprocessor_config.json"))
    where = path / "generation_config.json"
    languages = {str(name).strip("<|>"): _token(where, "lang_to_id", found) for name, found in _map(said, "lang_to_id")}
    spec = SpeechSpec(
        num_mels=_size(path, config, "num_mel_bins"),
        max_source_positions=_size(path, config, "max_source_positions"),
        max_target_positions=_size(path, config, "max_target_positions"),
        vocab_size=_size(path, config, "vocab_size"),
        start=_token(where, "decoder_start_token_id", _either("decoder_start_token_id", said, config)),
        eos=_token(where, "eos_token_id", _either("eos_token_id", said, config, default=_DEFAULT_EOS)),
        no_timestamps=_token(where, "no_timestamps_token_id", said.get("no_timestamps_token_id")),
        previous=said.get("prev_sot_token_id"),
        languages=languages if said.get("is_multilingual", bool(languages)) else {},
        tasks={str(name): _token(where, "task_to_id", found) for name, found in _map(said, "task_to_id")},
        suppressed=tuple(_either("suppress_tokens", said, config, default=())),
        suppressed_first=tuple(_either("begin_suppress_tokens", said, config, default=())),
        max_initial_timestamp=said.get("max_initial_timestamp_index"),
    )
    _check(where, spec)
    return spec


def check_features(file: Path, said: Mapping[str, Any], **more: object) -> None:
    """Raise ModelInvalid where a file says something of features that is not made here; `more` is allowed alone."""
    for name, needed in (_FEATURES | more).items():
        if said.get(name, needed) != needed:
            raise ModelInvalid(f"{file}: {name} is {said[name]}; allowed is {needed}")
    if said.get("dither") or said.get("do_normalize"):
        raise ModelInvalid(f"{file}: dither or do_normalize is set; allowed is neither")


def _check(file: Path, spec: SpeechSpec) -> None:
    known = [spec.start, spec.eos, spec.no_timestamps, *spec.languages.values(), *spec.tasks.values()]
    known += [*spec.suppressed, *spec.suppressed_first]
    if bad := next((token for token in known if not 0 <= token < spec.vocab_size), None):
        raise ModelInvalid(f"{file}: names the token {bad}; the vocabulary has {spec.vocab_size}")
    if not spec.has_timestamps:
        raise ModelInvalid(
            f"{file}: no_timestamps_token_id is {spec.no_timestamps}; {spec.max_source_positions + 1} tokens for times "
            f"are needed behind it, and the vocabulary has {spec.vocab_size}"
        )
    if spec.languages and not {"transcribe", "translate"} <= spec.tasks.keys():
        raise ModelInvalid(f"{file}: task_to_id lacks transcribe or translate, which a multilingual model needs")


def _size(path: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelInvalid(f"{path / 'config.json'}: {name} is {value!r}; a number above 0 is needed")
    return value


def _token(file: Path, name: str, value: Any) -> int:
    found = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(found, int):
        raise ModelInvalid(f"{file}: {name} is {value!r}; a token's id is needed; copy the whole model directory")
    return found


def _map(said: Mapping[str, Any], name: str) -> list[tuple[Any, Any]]:
    found = said.get(name)
    return list(found.items()) if isinstance(found, Mapping) else []


def _either(name: str, *files: Mapping[str, Any], default: Any = None) -> Any:
    """Return what the first file says that says anything."""
    return next((said[name] for said in files if said.get(name) is not None), default)
