"""For tests of the front: settings with free ports, a model's directory without weights, and time that is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.engine.status_board import Changes
from dormouse_worker.front.flags.settings import FrontSettings
from dormouse_worker.testing.fake_engine import MODEL_LEN

VOCAB_SIZE = 260  # 256 bytes and 4 special tokens
BOS, EOS = 256, 257
SPECIAL_TOKENS = ("<s>", "</s>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{{ '<|assistant|>' if add_generation_prompt }}"
)


class VirtualTime:
    """A clock that moves only when told, with the `sleep` that belongs to it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.num_naps = 0
        self._wakes: list[tuple[float, float, asyncio.Future[None]]] = []  # until when, how long, what to wake
        self._changes = Changes()

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        """Wait until the time was advanced so far."""
        wake = asyncio.get_running_loop().create_future()
        self._wakes.append((self.now_s + seconds, seconds, wake))
        self.num_naps += 1
        self._changes.notify()
        await wake

    async def until_nap(self, seconds: float) -> None:
        """Wait until somebody sleeps for so long."""
        await self._changes.until(lambda: self.is_napping(seconds))

    async def until_naps(self, count: int) -> None:
        """Wait until somebody went to sleep for the so-many-th time."""
        await self._changes.until(lambda: self.num_naps >= count)

    def is_napping(self, seconds: float) -> bool:
        """Return whether somebody sleeps for so long."""
        return any(nap_s == seconds and not wake.done() for _, nap_s, wake in self._wakes)

    def advance(self, seconds: float) -> None:
        """Move the time on and wake whoever slept as long."""
        self.now_s += seconds
        due = [wake for at_s, _, wake in self._wakes if at_s <= self.now_s and not wake.done()]
        self._wakes = [entry for entry in self._wakes if entry[0] > self.now_s]
        for wake in due:
            wake.set_result(None)


def engine_settings(model: Path, **overrides: Any) -> EngineSettings:
    """Return settings that need no weights."""
    return EngineSettings(**{"model": str(model), "load_format": "dummy", "max_model_len": MODEL_LEN, **overrides})


def front_settings(**overrides: Any) -> FrontSettings:
    """Return settings with free ports of loopback and no roles."""
    fields: dict[str, Any] = {
        "served_model_names": ("tiny", "team/tiny"),
        "host": "127.0.0.1",
        **dict.fromkeys(("port", "control_port", "metrics_port"), 0),
        "drain_timeout_s": 5.0,
        "prepared_timeout_s": 60.0,
        "max_waiting_requests": 1024,
        "max_open_calls": 4096,
        "default_timeout_s": 600.0,
        "max_timeout_s": 3600.0,
        "engine_timeout_s": 60.0,
        "engine_load_timeout_s": 1800.0,
        "engine_command_timeout_s": 300.0,
        "max_engine_restarts": 0,
        "engine_restart_window_s": 600.0,
        "standalone": False,
        "device_grants": False,
        "enable_reflection": False,
        "local_socket": "",
        "profiler_dir": "",
        "log_level": "INFO",
        "pod_uid": "pod-uid",
        "settings_digest": "digest",
        "operator_key": "",
        "gateway_key": "",
    }
    return FrontSettings(**{**fields, **overrides})


def write_model(directory: Path, *, generation: Mapping[str, Any] | None = None, template: str = CHAT_TEMPLATE) -> Path:
    """Write config, generation config and a tokenizer of 256 bytes and four special tokens; no weights."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB_SIZE, "max_position_embeddings": 128}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": EOS}
    (directory / "config.json").write_text(json.dumps({**config, **layers, "dtype": "float32"}))
    (directory / "generation_config.json").write_text(json.dumps(generation or {}))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[1], "chat_template": template}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({**named, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return directory
