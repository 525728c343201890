"""Train an EAGLE head for the small trained model, or another of Llama's kind, on Python's own library.

One decoder layer that learns the model's next state, and with it the next token, from the state before and the token
between them: EAGLE's losses (Li et al., 'EAGLE', 2024). Saved beside the models in DORMOUSE_CACHE, under the names that
its authors publish heads with.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.bootstrap import cache_root, machine_lock
from tools.train_model import Recipe as ModelRecipe
from tools.train_model import learning_rate_factor, library_sources, make, token_stream, training_texts

if TYPE_CHECKING:
    import torch

TOKEN_SHARE = 0.5  # of the loss: what the model would say, beside the distance of the states


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the weights besides the model; its digest names the cached head."""

    seed: int = 21
    sequence_length: int = 128  # tokens of one training row
    batch_size: int = 8
    steps: int = 600
    learning_rate: float = 1e-3

    def digest(self, model: Path) -> str:
        """Return a short name that changes with the recipe, its source or the model."""
        parts = repr(self), model.name, Path(__file__).read_text("utf-8")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def head_dir(recipe: Recipe, model: Path) -> Path:
    """Return where the trained head is kept."""
    return cache_root() / "models" / f"head-{recipe.digest(model)}"


def build_head(config: Any) -> Any:
    """Return an untrained head for a model of this configuration: `fc`, and one layer without a norm before it."""
    from torch import nn
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    layer: Any = LlamaDecoderLayer(config, 0)
    layer.input_layernorm = nn.Identity()
    head = nn.Module()
    head.fc, head.layers = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False), nn.ModuleList([layer])
    head.rotary = LlamaRotaryEmbedding(config)  # its buffers are computed, and not saved
    return head


def guess(head: Any, vectors: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return guesses of the next states, [B, T, H], of tokens' vectors and the states before them, [B, T, H]."""
    import torch

    hidden = head.fc(torch.cat([vectors, states], dim=-1))
    places = torch.arange(hidden.shape[1])[None]
    out = head.layers[0](hidden, position_ids=places, position_embeddings=head.rotary(hidden, places))
    found: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return found


def train(head: Any, model: Any, rows: torch.Tensor, recipe: Recipe) -> float:
    """Train in place on rows [steps, B, T]; return how often it says on the last what the model says."""
    import torch
    from torch.nn.functional import cross_entropy, smooth_l1_loss

    optimizer = torch.optim.AdamW(head.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, recipe.steps))
    started, agreed = time.monotonic(), 0.0
    for step, batch in enumerate(rows):
        with torch.no_grad():
            states = model.model(input_ids=batch).last_hidden_state
            vectors, wanted = model.get_input_embeddings()(batch[:, 1:]), states[:, 1:]
            said = model.lm_head(wanted)
        guessed = guess(head, vectors, states[:, :-1])
        logits = model.lm_head(guessed)
        loss: Any = smooth_l1_loss(guessed, wanted)
        loss = loss + TOKEN_SHARE * cross_entropy(logits.flatten(0, 1), said.softmax(-1).flatten(0, 1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        agreed = float((logits.argmax(-1) == said.argmax(-1)).float().mean())
        if step % 100 == 99:
            took = time.monotonic() - started
            print(f"[head] step {step + 1}/{recipe.steps}  loss {loss.item():.2f}  {took:.0f} s", flush=True)
    return agreed


def save(head: Any, config: Any, directory: Path) -> None:
    """Write the head's files: a configuration of one layer, and its tensors."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    settings = config.to_dict() | {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
    type(config)(**settings).save_pretrained(directory)
    save_file(
        {name: each.detach().contiguous() for name, each in head.named_parameters()}, directory / "model.safetensors"
    )


def make_head(recipe: Recipe, model: Path) -> Path:
    """Train and save the head of a model's directory, unless it is in the cache; return its directory."""
    final = head_dir(recipe, model)
    with machine_lock("head"):
        if final.is_dir():
            return final
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.manual_seed(recipe.seed)
        print(f"[head] training a head of {model} on Python's own library (about 2 minutes)", flush=True)
        tokenizer = AutoTokenizer.from_pretrained(model)  # nosec B615  # of a directory
        target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)  # nosec B615  # of a directory
        target.eval().requires_grad_(requires_grad=False)
        texts = training_texts(library_sources(), random.Random(recipe.seed))
        needed = recipe.steps * recipe.batch_size * recipe.sequence_length
        rows = token_stream(tokenizer, texts, needed).view(-1, recipe.batch_size, recipe.sequence_length)
        head = build_head(target.config)
        agreed = train(head, target, rows, recipe)
        building = final.with_name(final.name + ".partial")
        shutil.rmtree(building, ignore_errors=True)
        save(head, target.config, building)
        building.rename(final)
        print(f"[head] says what the model says for {agreed:.0%} of the tokens: {final}", flush=True)
    return final


def main() -> None:
    """Make the head and print its directory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, help="directory of the model; the default is the small trained one")
    parser.add_argument("--steps", type=int, default=600, help="training steps; the default takes about two minutes")
    args = parser.parse_args()
    print(make_head(Recipe(steps=args.steps), args.model or make(ModelRecipe())))


if __name__ == "__main__":
    main()
