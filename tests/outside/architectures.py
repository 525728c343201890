"""Every architecture in transformers' table of causal language models, as tiny as it can be made: ours beside theirs.

`python -m tests.outside.architectures [NAME …]` prints a line for each; the tests beside this module assert it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dormouse_worker.common.errors import Internal, WorkerError
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import make_add
from dormouse_worker.executor.single_process import SingleProcessExecutor
from tests.outside.own_sizes import OWN, with_own

NAMES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
VOCAB_SIZE, MAX_TOKENS, NUM_BLOCKS = 260, 6, 64
MAX_PARAMETERS = 20_000_000
PROMPTS = {"short": [5, 6, 7, 8, 9], "long": [(i * i * 7 + 3 * i + 11) % 250 + 4 for i in range(21)]}

_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim", "dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "d_ff"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 128),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "top_k_experts", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 24),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4),
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB_SIZE,
    "sliding_window": 8,
    "query_pre_attn_scalar": 8,
    "initializer_range": 0.3,
    "is_decoder": True,
    "tie_word_embeddings": False,
}
_WITHOUT = ((), ("head_dim", "num_key_value_heads"), ("tie_word_embeddings", "sliding_window", "first_k_dense_replace"))
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


class NotBuilt(Exception):
    """No tiny model of this architecture could be made here; the message says why."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of one architecture."""

    name: str
    verdict: str  # equal | refused | not built | different | failed
    words: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name:28} {self.verdict:10} {self.seconds:5.1f} s  {self.words[:200]}"


def sweep(name: str, seed: int = 0) -> Ending:
    """Build, write, load and compare one architecture. Raises nothing."""
    begin_s = time.monotonic()
    torch.set_num_threads(1)  # threads that wait for each other over tiny tensors cost more than they give
    with tempfile.TemporaryDirectory() as folder:
        verdict, words = _judge(name, Path(folder), seed)
    return Ending(name, verdict, words, time.monotonic() - begin_s)


def _judge(name: str, folder: Path, seed: int) -> tuple[str, str]:
    problems = []
    for number, without in enumerate(_WITHOUT):
        directory = folder / str(number)
        try:
            _write(name, directory, without, seed)
            got = _generate(directory)
            return _compare(got, _reference(directory))
        except NotBuilt as error:
            problems.append(str(error))
        except Internal as error:
            return "failed", str(error)
        except WorkerError as error:
            words = f"{error.reason}: {error}".replace(str(directory), "MODEL")
            if "does not run" not in words or _runs(directory):
                return "refused", words
            problems.append(f"sizes that do not fit each other: {words}")
        except Exception as error:  # noqa: BLE001  what must not happen is the verdict
            return "failed", f"{type(error).__name__}: {error}"
    return "not built", "; ".join(dict.fromkeys(problems))


def _compare(got: dict[str, list[int]], expected: dict[str, list[int]]) -> tuple[str, str]:
    return ("equal", "") if got == expected else ("different", f"{got} instead of {expected}")


def _write(name: str, directory: Path, without: tuple[str, ...], seed: int) -> None:
    """Write a tiny random checkpoint. Raises NotBuilt."""
    torch.manual_seed(seed)
    try:
        config = _shrink(name, without)
        _check_small(config)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        model.save_pretrained(directory)
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(_first_line(error)) from error


def _check_small(config: Any) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    if count > MAX_PARAMETERS:
        raise NotBuilt(f"{count / 1e6:.0f} million parameters at the least")


def _reference(directory: Path) -> dict[str, list[int]]:
    """Return what transformers says to the prompts. Raises NotBuilt where it says nothing to such sizes itself."""
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        return {key: _greedy(model, prompt) for key, prompt in PROMPTS.items()}
    except Exception as error:
        raise NotBuilt(f"transformers computes it not either: {_first_line(error)}") from error


def _runs(directory: Path) -> bool:
    try:
        return bool(_reference(directory))
    except NotBuilt:
        return False


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _shrink(name: str, without: tuple[str, ...]) -> Any:
    """Return a configuration of the kind with small sizes; those of its parts, too."""
    kind = CONFIG_MAPPING[name]
    default = kind().to_dict()
    fields = _small(default, without)
    for part, value in default.items():
        if isinstance(value, dict) and part.endswith("_config") and value.get("hidden_size"):
            fields[part] = {
                **_small(value, without),
                **({"model_type": value["model_type"]} if "model_type" in value else {}),
            }
    return kind(**with_own({**fields, **_TOKENS}, OWN.get(name, {})))


def _small(default: dict[str, Any], without: tuple[str, ...]) -> dict[str, Any]:
    wanted = {key: size for key, size in _SIZES.items() if key in default and key not in without}
    return {key: size for key, size in wanted.items() if not isinstance(default[key], list | dict)}


def _greedy(model: Any, prompt: list[int]) -> list[int]:
    """Return the tokens of transformers' own forward pass, the whole text anew for each."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(MAX_TOKENS):
            logits = model(torch.tensor([tokens])).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def _generate(directory: Path) -> dict[str, list[int]]:
    """Return what our worker says to all prompts at once."""
    settings = EngineSettings(
        model=str(directory),
        dtype="float32",
        block_size=4,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_cache_memory_bytes=16 << 20,
        threads=1,
    )
    executor = SingleProcessExecutor(settings, dict(os.environ), Host())
    try:
        executor.init_device()
        executor.load_model()
        executor.determine_num_available_blocks()
        report = executor.get_memory_report()
        assert report is not None, "it comes with the blocks"
        executor.initialize_cache(NUM_BLOCKS, 0)
        engine = build_engine(settings, report, (NUM_BLOCKS, 0), executor, clock=time.monotonic)
        tokens: dict[str, list[int]] = {name: [] for name in PROMPTS}
        for key, prompt in PROMPTS.items():
            assert engine.add(make_add(key, prompt, max_tokens=MAX_TOKENS)) is None
        while (outputs := engine.step()) is not None:
            assert not outputs.failed, outputs.failed
            for output in outputs.outputs:
                tokens[output.request_id] += output.token_ids
        return tokens
    finally:
        executor.shutdown()


def main(names: list[str]) -> int:
    """Print a line for each architecture and the sum; return 1 if one is different or failed."""
    endings = []
    for name in names or NAMES:
        endings.append(sweep(name))
        print(endings[-1], flush=True)
    counts = Counter(ending.verdict for ending in endings)
    print(dict(counts))
    return int(bool(counts["different"] + counts["failed"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
