"""Train the small model that demo and tests talk to, from the sources and docstrings of this Python interpreter.

A Llama of about 3 million parameters with a byte-level BPE tokenizer and a chat template, saved as an ordinary
Hugging Face directory in DORMOUSE_CACHE/models. It knows a little Python and a little English: enough that its text
is readable and that greedy choices are clear. The same seed on the same interpreter gives the same weights.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import random
import shutil
import sys
import sysconfig
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.bootstrap import cache_root, machine_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL_TOKENS = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
LONGEST_ANSWER, LONGEST_SOURCE = 300, 700  # characters
QUESTIONS = ("What does {} do?", "Explain {}.", "What is {}?", "Tell me about {}.")
LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the weights; its digest names the cached model."""

    seed: int = 20
    vocab_size: int = 4096
    hidden_size: int = 256
    num_layers: int = 3
    num_heads: int = 8
    num_kv_heads: int = 4
    intermediate_size: int = 704
    max_position_embeddings: int = 2048
    sequence_length: int = 128  # tokens of one training row
    batch_size: int = 8
    steps: int = 600
    learning_rate: float = 0.02  # of Muon, for the matrices; the rest follows AdamW at a tenth

    def digest(self) -> str:
        """Return a short name that changes with the recipe, its sources or the interpreter."""
        sources = (Path(__file__), Path(__file__).with_name("muon.py"))
        parts = (repr(self), sys.version, *(source.read_text("utf-8") for source in sources))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def model_dir(recipe: Recipe) -> Path:
    """Return where the trained model is kept."""
    return cache_root() / "models" / f"tiny-{recipe.digest()}"


def library_sources() -> list[str]:
    """Return the sources of the standard library, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = (p for p in sorted(root.rglob("*.py")) if not LEFT_OUT & set(p.relative_to(root).parts))
    return [p.read_text("utf-8", errors="replace") for p in paths]


def documented(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, first paragraph of its docstring, its source) of everything that a module documents."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            doc = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if len(doc) > 20 and not node.name.startswith("_"):
                yield node.name, doc, ast.get_source_segment(source, node) or ""


def training_texts(sources: list[str], rng: random.Random) -> list[str]:
    """Return shuffled documents: docstrings as questions and answers in the chat format, and short sources."""
    documents = []
    for source in sources:
        for name, doc, code in documented(source):
            question = rng.choice(QUESTIONS).format(name)
            documents.append(f"<|user|>{question}</s><|assistant|>{doc[:LONGEST_ANSWER]}</s>")
            if len(code) < LONGEST_SOURCE:
                documents.append(f"{textwrap.dedent(code)}\n</s>")
    rng.shuffle(documents)
    return documents


def train_tokenizer(texts: list[str], vocab_size: int) -> Any:
    """Return a byte-level BPE tokenizer in transformers' clothes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    wrapped: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", model_max_length=2048
    )
    wrapped.add_special_tokens({"additional_special_tokens": SPECIAL_TOKENS[2:]})
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def build_model(recipe: Recipe) -> Any:
    """Return the untrained Llama of the recipe."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_kv_heads,
        intermediate_size=recipe.intermediate_size,
        max_position_embeddings=recipe.max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config)


def token_stream(tokenizer: Any, texts: list[str], needed: int) -> torch.Tensor:
    """Return at least `needed` token ids [needed], documents one after the other, each begun by <s>."""
    import torch

    ids: list[int] = []
    chunk = 256
    for start in range(0, len(texts), chunk):
        for row in tokenizer(texts[start : start + chunk])["input_ids"]:
            ids.extend(row)
        if len(ids) >= needed:
            break
    repeats = -(-needed // len(ids))
    return torch.tensor((ids * repeats)[:needed])


def make_optimizers(model: Any, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for embeddings and norms."""
    import torch

    from tools.muon import Muon

    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        Muon(matrices, lr=recipe.learning_rate),
        torch.optim.AdamW(others, lr=recipe.learning_rate / 5, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def learning_rate_factor(step: int, steps: int) -> float:
    """Rise over the first 5 %, stay, and fall to zero over the last 40 %."""
    return min(1.0, (step + 1) / (0.05 * steps), (steps - step) / (0.4 * steps))


def train(model: Any, tokens: torch.Tensor, recipe: Recipe) -> tuple[float, float]:
    """Train in place and return the loss (nats per token) before and after, both on rows that were not trained on."""
    import torch

    rows = tokens.view(-1, recipe.batch_size, recipe.sequence_length)
    held_out, rows = rows[0], rows[1:]
    optimizers = make_optimizers(model, recipe)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda step: learning_rate_factor(step, recipe.steps)) for o in optimizers
    ]
    before = evaluate(model, held_out)
    started = time.monotonic()
    for step, batch in enumerate(rows):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 100 == 99:
            print(
                f"[model] step {step + 1}/{recipe.steps}  loss {loss.item():.2f}  {time.monotonic() - started:.0f} s",
                flush=True,
            )
    return before, evaluate(model, held_out)


def evaluate(model: Any, batch: torch.Tensor) -> float:
    """Return the mean loss of one batch in nats per token."""
    import torch

    with torch.no_grad():
        return float(model(input_ids=batch, labels=batch).loss)


def make(recipe: Recipe) -> Path:
    """Train and save the model, unless it is in the cache; return its directory."""
    final = model_dir(recipe)
    with machine_lock("model"):
        if final.is_dir():
            return final
        import torch
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        torch.manual_seed(recipe.seed)
        print("[model] training a small model on Python's own library (about 2 minutes)", flush=True)
        texts = training_texts(library_sources(), random.Random(recipe.seed))
        tokenizer = train_tokenizer(texts, recipe.vocab_size)
        needed = (recipe.steps + 1) * recipe.batch_size * recipe.sequence_length
        tokens = token_stream(tokenizer, texts, needed)
        model = build_model(recipe)
        before, after = train(model, tokens, recipe)
        building = final.with_name(final.name + ".partial")
        shutil.rmtree(building, ignore_errors=True)
        model.save_pretrained(building, safe_serialization=True)
        tokenizer.save_pretrained(building)
        building.rename(final)
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        print(f"[model] {millions:.1f}M parameters, loss {before:.2f} before, {after:.2f} after: {final}", flush=True)
    return final


def main() -> None:
    """Make the model and print its directory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=20, help="seed of the weights and of the data's order")
    parser.add_argument("--steps", type=int, default=600, help="training steps; the default takes about two minutes")
    args = parser.parse_args()
    print(make(Recipe(seed=args.seed, steps=args.steps)))


if __name__ == "__main__":
    main()
