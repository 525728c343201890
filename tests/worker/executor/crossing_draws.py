"""What the crosser draws at random: models, ranks of a model, requests. Everything goes with everything that is served.

What is refused by name is no part of it: heads beside adapters or quantized weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dormouse_worker.model.bare.config import FAMILIES
from dormouse_worker.model.testing import ARCHITECTURES, EOS, write_tiny_model
from dormouse_worker.model.testing_adapters import write_adapter, write_soft_prompt
from dormouse_worker.model.testing_vision import build_prompt, draw_picture, write_tiny_vision_model
from dormouse_worker.model.testing_vision_families import CASES
from tests.worker.executor import draft_kit
from tests.worker.executor.grammar_kit import BYTES, grammar, schema
from tests.worker.executor.test_grammars import SCHEMAS

OF_OUR_KERNELS = ("cwm", "llama", "ministral", "mistral", "qwen2", "qwen3")  # rows have the same bits beside any
OF_WINDOWS = ("cwm", "ministral", "mistral")  # whose layers forget keys that an adapter brings
OF_TORCH = tuple(sorted(ARCHITECTURES.keys() - set(OF_OUR_KERNELS)))
SEEING = tuple(sorted(CASES))
ROOMS = (26, 26, 40)  # blocks: the fewer, the more are preempted
MAX_MODEL_LEN = 96
WITH_TORCH = ("cpu", "own memory")
INVOCATION = [61, 62]  # of the activated adapter
DRAFTERS = {"draft": (draft_kit.blurred, draft_kit.stranger), "eagle": (draft_kit.head, draft_kit.third_head)}
A_D = tuple(BYTES.index(ord(char)) for char in "abcd")
BOUND_BY = [grammar("regex", "([a-d]{3,5} ){3}end"), grammar("choice", ["aab", "abba"]), *map(schema, SCHEMAS)]
TENANTS = ("", "", "another")


@dataclass(frozen=True)
class Model:
    """A checkpoint, and what of the settings decides what it says."""

    directory: Path
    architecture: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    adapters: tuple[Path, ...]
    attention_backend: str
    sees: bool = False

    @property
    def is_ours(self) -> bool:
        """Return whether our kernels compute all of it: rows have the same bits beside any others."""
        return self.architecture in OF_OUR_KERNELS and self.attention_backend == "auto"

    @property
    def is_bare(self) -> bool:
        """Return whether an engine without torch computes it."""
        return self.is_ours and self.architecture in FAMILIES and not self.adapters

    @property
    def settings(self) -> dict[str, Any]:
        lora = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 8} if self.adapters else {}
        stored = {"quantization": self.quantization, "kv_cache_dtype": self.kv_cache_dtype}
        stored["attention_backend"] = self.attention_backend
        if self.sees:
            stored["image_dir"] = str(self.directory.parent)
        return {"dtype": self.dtype, "max_model_len": MAX_MODEL_LEN, **stored, **lora}


@dataclass(frozen=True)
class Wish:
    """A request. `adapter` is the place of one of the model's, -1 = the base alone."""

    prompt: tuple[int, ...]
    sampling: dict[str, Any] = field(default_factory=dict)
    bound_by: Any = None
    adapter: int = -1
    salt: str = ""
    priority: int = 0
    images: tuple[Any, ...] = ()


def draw_model(draw, folder, architecture):
    """Write a checkpoint, of a model that sees or one for text, and adapters for it or none."""
    directory, seed = folder / "model", draw.randrange(1000)
    if architecture in SEEING:
        write_tiny_vision_model(directory, architecture, seed=seed)
        return Model(directory, architecture, "float32", "none", "auto", (), "auto", sees=True)
    can_adapt = architecture in OF_OUR_KERNELS
    is_ours = can_adapt and draw.random() < 0.85
    write_tiny_model(directory, architecture, seed=seed, **({"num_hidden_layers": 3} if can_adapt else {}))
    adapters = draw_adapters(folder, directory, architecture) if can_adapt and draw.random() < 0.6 else ()
    dtype = draw.choice(("float32", "bfloat16")) if is_ours else "float32"
    if dtype == "bfloat16":
        halve(directory)
    return Model(
        directory,
        architecture,
        dtype,
        draw.choice(("none", "int8", "int4")) if is_ours else "none",
        draw.choice(("auto", "int8", "fp8")) if is_ours else "auto",
        adapters,
        "auto" if is_ours or not can_adapt else "sdpa",
    )


def in_16_bits(weights):
    return {name: weight.bfloat16() for name, weight in weights.items() if weight.is_floating_point()}


def halve(directory):
    """Write a checkpoint's weights in 16 bits."""
    draft_kit.change_weights(directory, lambda weights: weights.update(in_16_bits(weights)))
    draft_kit.change_config(directory, dtype="bfloat16")


def draw_adapters(folder, base, architecture):
    """Write one adapter of each kind."""
    write = partial(write_adapter, base=base)
    keys = () if architecture in OF_WINDOWS else (write_soft_prompt(folder / "e", base, kind="PREFIX_TUNING"),)
    return (
        write(folder / "a", targets=("q_proj", "v_proj", "down_proj")),
        write(folder / "b", rank=8, targets=("o_proj", "gate_proj"), seed=1, use_rslora=True),
        write(folder / "c", seed=2, alora_invocation_tokens=INVOCATION),
        write_soft_prompt(folder / "d", base),
        *keys,
    )


def draw_rank(draw, model, folder):
    """Return worker, blocks on the device and settings of one rank."""
    worker = draw.choice(("no torch", *WITH_TORCH) if model.is_bare else WITH_TORCH)
    settings = {
        "max_num_seqs": draw.choice((3, 8, 24)),
        "max_num_batched_tokens": 256 if model.sees else draw.choice((16, 24, 64, 200)),
        "enable_prefix_caching": draw.random() < 0.85,
        "keep_prefix_cache": draw.random() < 0.5,
        "swap_space_bytes": draw.choice((0, 1 << 16, 1 << 20)),
        "num_speculative_tokens": draw.choice((1, 4, 9)),
        **draw_drafter(draw, model, folder, worker),
    }
    if settings["enable_prefix_caching"] and draw.random() < 0.5:
        settings["kv_store_dir"] = str(folder / "kv")
    return worker, draw.choice(ROOMS), settings


def draw_drafter(draw, model, folder, worker):
    """Return who drafts. A head reads a plain model, and knows nothing of adapters."""
    methods = ["off", "ngram", "suffix", *(["draft"] if worker in WITH_TORCH and not model.sees else [])]
    if model.architecture == "llama" and model.quantization == "none" and not model.adapters:
        methods += ["eagle", "eagle"] if worker != "own memory" else []
    method = draw.choice(methods)
    if method not in DRAFTERS:
        return {"speculation_method": method}
    make = draw.choice(DRAFTERS[method])
    drafter = folder / make.__name__
    if not drafter.exists():
        make(drafter, model.directory)
        if method == "eagle" and model.dtype == "bfloat16":
            halve(drafter)
    return {"speculation_method": method, "speculation_model": str(drafter)}


def draw_wishes(draw, model, count):
    """Return requests, many of which begin alike."""
    stems = [tuple(draw.randrange(40, 60) for _ in range(draw.randrange(4, 30))) for _ in range(3)]
    return [draw_wish(draw, model, draw.choice(stems)) for _ in range(count)]


def draw_wish(draw, model, stem):
    """Return a request."""
    run = [draw.randrange(40, 60) for _ in range(draw.randrange(1, 9))]
    images = ()
    if model.sees and draw.random() < 0.8:
        stem, images = draw_seen(draw, model, stem)
    prompt = (*stem, *(run * 4)[: draw.randrange(0, 24)])
    if draw.random() < 0.3 and not images:
        prompt = (*prompt[: len(prompt) // 2], *INVOCATION, *prompt[len(prompt) // 2 :])
    sampling = {
        "max_tokens": draw.randrange(1, 40),
        "temperature": draw.choice((0.0, 0.0, 0.4, 1.0)),
        "seed": draw.randrange(1 << 63),
    }
    options = {
        "top_p": draw.choice((0.5, 0.9)),
        "top_k": draw.choice((1, 5, 40)),
        "min_p": 0.05,
        "repetition_penalty": draw.choice((0.8, 1.3)),
        "frequency_penalty": draw.choice((-0.5, 0.7)),
        "presence_penalty": 0.5,
        "logprobs": draw.choice((0, 3)),
        "prompt_logprobs": draw.choice((0, 2)),
        "min_tokens": draw.randrange(0, sampling["max_tokens"] + 1),
        "stop_token_ids": (EOS, draw.choice(run)),
        "choice_index": draw.randrange(4),
        "bad_words_token_ids": ((run[0],), (run[-1], A_D[0])),
        "allowed_token_ids": (*range(30, 60), *A_D, EOS),
        "logit_bias": dict.fromkeys(run, draw.choice((-3.0, 2.0, 5.0))),
    }
    sampling |= {name: value for name, value in options.items() if draw.random() < 0.2}
    if draw.random() < 0.1:
        sampling |= {"logprobs": 1, "logprob_token_ids": (3, 99, 250)}
    return Wish(
        prompt,
        {"stop_token_ids": (EOS,), **sampling},
        draw.choice(BOUND_BY) if draw.random() < 0.3 else None,
        draw.randrange(-1, len(model.adapters)),
        draw.choice(TENANTS),
        draw.choice((0, 0, 0, -1, 5)),
        images,
    )


def draw_seen(draw, model, stem):
    """Return the tokens of a prompt with one or two of a few images in it, and these."""
    parts = [list(stem[:6]), draw_picture(model.architecture, draw.randrange(4))]
    if draw.random() < 0.4:
        parts += [[7, 8], draw_picture(model.architecture, draw.randrange(4))]
    tokens, images = build_prompt(parts, model.directory.parent)
    return tuple(tokens), tuple(images)


def draw_prediction(draw, tokens):
    """Return what a caller expects: right, wrong now and then, always wrong, or nothing."""
    every = draw.choice((0, 0, 1, 3, 5, 100))
    if not every or not tokens:
        return []
    guess = [(token + 1) % 200 if place % every == every - 1 else token for place, token in enumerate(tokens)]
    return guess[: draw.randrange(1, 1 + len(guess))]
