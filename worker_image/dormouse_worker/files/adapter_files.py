"""An adapter's directory, as peft's `save_pretrained` writes it, checked before anything is allocated. No torch.

adapter_config.json         what the matrices are for
adapter_model.safetensors   base_model.model.MODULE.lora_A.weight [rank, in], ….lora_B.weight [out, rank];
                            of a soft prompt prompt_embeddings [tokens, size], of PREFIX_TUNING
                            [tokens, layers · 2 · heads · head size]: keys, then values, layer by layer
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import AdapterInvalid, AdapterNotFound, ModelInvalid, PickleRefused
from dormouse_worker.files.adapter_config import LoraConfig, ends_with, parse_config
from dormouse_worker.files.safetensors_files import StoredTensor, read_safetensors
from dormouse_worker.files.soft_prompt_config import SoftPromptConfig
from dormouse_worker.files.soft_prompt_files import NO_ROOM, PromptRoom, check_soft_prompt

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth", "pytorch_model.bin")
MAX_CONFIG_BYTES = 1 << 20
MAX_MESSAGE = 1000  # characters
DTYPES = ("F32", "BF16", "F16")
_PREFIX = "base_model.model."
_EMBEDDING = ".lora_embedding_"
_ENDS = {".lora_A.weight": "A", ".lora_B.weight": "B"}

Take = Callable[[StoredTensor, bytearray], object]  # of one tensor and its bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """A linear layer of the base."""

    num_inputs: int
    num_outputs: int


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices of one module, and what their product is multiplied by."""

    a: StoredTensor
    b: StoredTensor
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter that fits its base as far as its files' headers tell."""

    path: Path
    rank: int  # the highest of any module; 0 = it is a soft prompt
    invocation: tuple[int, ...]  # token ids from which on it is used; () = from the beginning
    pairs: Mapping[str, Pair]  # by the base's module
    config: bytes  # the file's bytes that were parsed
    header: bytes  # of the weights' file, as it was parsed
    prompt: StoredTensor | None = None  # of a soft prompt alone: its vectors [tokens, size]
    has_keys: bool = False  # these are keys and values

    @property
    def num_virtual_tokens(self) -> int:
        """Return how many vectors stand in front of a prompt."""
        return 0 if self.prompt is None else self.prompt.shape[0]

    def read(self, take: Take) -> str:
        """Hand over every matrix, in the file's order; return the hexadecimal SHA-256 over both files.

        It is that of the very bytes that were parsed and handed over. Raises AdapterInvalid if the weights cannot be
        read, or change meanwhile.
        """
        halves = [half for pair in self.pairs.values() for half in (pair.a, pair.b)]
        tensors = sorted(halves if self.prompt is None else [self.prompt], key=lambda one: one.start)
        file, end = tensors[-1].file, tensors[-1].end
        whole = begin_digest(self.config, end)
        whole.update(self.header)
        try:
            with file.open("rb") as stream:
                before = os.fstat(stream.fileno())
                is_the_same = stream.read(len(self.header)) == self.header
                for tensor in tensors if is_the_same else ():
                    raw = _read_next(stream, tensor)
                    whole.update(raw)
                    take(tensor, raw)
                after = os.fstat(stream.fileno())
        except OSError as error:
            raise AdapterInvalid(f"{file}: cannot be read: {error}") from error
        if not is_the_same or (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise AdapterInvalid(f"{file}: it changed while it was read; load it again")
        return whole.hexdigest()


def check_adapter_files(
    path: Path,
    base: Mapping[str, Shape],
    *,
    max_rank: int,
    vocab_size: int | None = None,
    room: PromptRoom = NO_ROOM,
    pause: Callable[[], object] = lambda: None,
) -> AdapterFiles:
    """Return the adapter in a directory; `base` are the linear layers that can be adapted, `room` is for soft prompts.

    `pause` is called where it can stop: thousands of modules take longer than a pass may wait.

    Reads headers only. Raises AdapterNotFound, PickleRefused, or AdapterInvalid naming the directory and the culprit.
    """
    if not path.is_dir():
        raise AdapterNotFound(f"{path}: no such directory; an adapter is one with {CONFIG_FILE} and {WEIGHTS_FILE}")
    try:
        raw = _read_config(_inside(path, CONFIG_FILE))
        config = parse_config(_parse_config(raw), max_rank)
        pause()
        weights = read_safetensors(_inside(path, WEIGHTS_FILE))
        pause()
        if isinstance(config, SoftPromptConfig):
            prompt = check_soft_prompt(weights.tensors, config, room, DTYPES)
            return AdapterFiles(path, 0, (), {}, raw, weights.raw_header, prompt, has_keys=config.keys is not None)
        pairs = _pairs(weights.tensors, config, base, pause)
        _check_targets(config, pairs, base, pause)
        _check_invocation(config.invocation, vocab_size)
    except AdapterInvalid as error:
        raise AdapterInvalid(_clipped(f"{path}: {error}")) from error
    except ModelInvalid as error:  # names the file
        raise AdapterInvalid(_clipped(str(error))) from error
    return AdapterFiles(path, config.max_rank, config.invocation, pairs, raw, weights.raw_header)


def begin_digest(config: bytes, weights_bytes: int) -> hashlib._Hash:
    """Return the hash of an adapter's digest, to which the weights' file is still to be added, from its first byte."""
    whole = hashlib.sha256(f"{CONFIG_FILE} {len(config)}\n".encode() + config)
    whole.update(f"{WEIGHTS_FILE} {weights_bytes}\n".encode())
    return whole


def read_config_file(file: Path) -> Mapping[str, Any]:
    """Return an adapter's configuration. Raises AdapterInvalid."""
    return _parse_config(_read_config(file))


def _read_next(stream: BufferedReader, tensor: StoredTensor) -> bytearray:
    """Return the bytes of the tensor at which a file stands."""
    raw = bytearray(tensor.end - tensor.start)
    if stream.readinto(raw) != len(raw):
        raise AdapterInvalid(f"{tensor.file}: it was cut off while it was read; copy the adapter again")
    return raw


def _clipped(message: str) -> str:
    """Return a message that fits a status on the wire, whatever stands in the files."""
    return (
        message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
    )


def _inside(path: Path, name: str) -> Path:
    """Return a file of the directory. A link out of it might show any file of this pod."""
    file = path / name
    if not file.is_file():
        if name == WEIGHTS_FILE and (pickle := next((each for each in PICKLES if (path / each).exists()), None)):
            raise PickleRefused(
                f"{path / pickle}: pickled weights can run code and are refused; save the adapter as safetensors"
            )
        raise AdapterInvalid(f"{name} is missing; copy the adapter again")
    if not file.resolve().is_relative_to(path.resolve()):
        raise AdapterInvalid(f"{name} is a link out of the directory; copy the file itself")
    return file


def _read_config(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise AdapterInvalid(f"{file.name} cannot be read ({error}); copy the adapter again") from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise AdapterInvalid(f"{file.name} has more than {MAX_CONFIG_BYTES} bytes")
    return raw


def _parse_config(raw: bytes) -> Mapping[str, Any]:
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise AdapterInvalid(f"{CONFIG_FILE} is not readable as JSON ({error}); copy the adapter again") from error
    if not isinstance(config, dict):
        raise AdapterInvalid(f"{CONFIG_FILE} holds {type(config).__name__}; a JSON object is needed")
    return config


def _pairs(
    tensors: Mapping[str, StoredTensor], config: LoraConfig, base: Mapping[str, Shape], pause: Callable[[], object]
) -> Mapping[str, Pair]:
    halves: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        module, half = _module_of(name)
        if module not in base:
            raise AdapterInvalid(f"tensor {name!r} is for {module!r}, which is no linear layer of the base's blocks")
        halves.setdefault(module, {})[half] = tensor
        pause()
    if not halves:
        raise AdapterInvalid(f"{WEIGHTS_FILE} has no tensors")
    pairs = {}
    for module in sorted(halves):
        pairs[module] = _pair(module, halves[module], config, base[module])
        pause()
    return pairs


def _module_of(name: str) -> tuple[str, str]:
    """Return the base's module, and which of its two matrices a tensor is."""
    for end, half in _ENDS.items():
        if name.startswith(_PREFIX) and name.endswith(end):
            return name.removeprefix(_PREFIX).removesuffix(end), half
    if _EMBEDDING in name:
        raise AdapterInvalid(f"tensor {name!r} adapts embeddings, which is not computed here; target linear layers")
    raise AdapterInvalid(f"tensor {name!r} is none of a LoRA's: {_PREFIX}MODULE.lora_A.weight or .lora_B.weight")


def _pair(module: str, halves: Mapping[str, StoredTensor], config: LoraConfig, shape: Shape) -> Pair:
    for half in _ENDS.values():
        if half not in halves:
            raise AdapterInvalid(f"{module} has no lora_{half}; copy the adapter again")
    rank = config.rank_of(module)
    wanted = {"A": (rank, shape.num_inputs), "B": (shape.num_outputs, rank)}
    for half, tensor in halves.items():
        if tensor.shape != wanted[half]:
            raise AdapterInvalid(
                f"lora_{half} of {module} is {list(tensor.shape)}; {list(wanted[half])} fits rank {rank} and this base"
            )
        if tensor.dtype not in DTYPES:
            raise AdapterInvalid(f"lora_{half} of {module} is of type {tensor.dtype}; allowed are {', '.join(DTYPES)}")
    return Pair(halves["A"], halves["B"], rank, config.scale_of(module))


def _check_targets(config: LoraConfig, pairs: Iterable[str], base: Iterable[str], pause: Callable[[], object]) -> None:
    """Refuse targets that match nothing, and modules that a target names and that have no weights."""
    has = frozenset(pairs)
    for target in config.target_modules:
        pause()
        matching = [module for module in base if ends_with(module, target)]
        if not matching:
            raise AdapterInvalid(f"target_modules has {target!r}, which is no linear layer of the base's blocks")
        missing = [module for module in matching if module not in has]
        if len(missing) == len(matching) or (missing and config.covers_all_layers):
            raise AdapterInvalid(f"{missing[0]} is among target_modules and has no weights; copy the adapter again")


def _check_invocation(token_ids: Iterable[int], vocab_size: int | None) -> None:
    """Refuse tokens that no prompt can have: the adapter would never be used."""
    for token_id in token_ids:
        if vocab_size is not None and token_id >= vocab_size:
            raise AdapterInvalid(
                f"alora_invocation_tokens has {token_id}; allowed are ids below the base's vocabulary size {vocab_size}"
            )
