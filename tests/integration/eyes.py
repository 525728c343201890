"""A LLaVA with random weights that has everything it needs to see, and what transformers says of its questions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.processing_llava import LlavaProcessor

from dormouse_worker.model.testing_vision import write_tiny_vision_model
from dormouse_worker.model.testing_vision_families import IMAGE
from tests.worker.front.images.kit import picture

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
OWN = {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
SIZES = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
ROWS = 16  # of an image
PICTURES = [picture(40, 30), picture(20, 60, seed=1), picture(33, 33, seed=2)]
QUESTION = "What is in this image?"


def write_eyes(folder: Path) -> Path:
    """Write the model's files; return the folder."""
    path = write_tiny_vision_model(folder, "llava")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<image>"])
    assert tokenizer.token_to_id("<image>") == IMAGE
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    kind = {"image_processor_type": "CLIPImageProcessor"}
    (path / "preprocessor_config.json").write_text(json.dumps({**SIZES, **kind}))
    (path / "processor_config.json").write_text(json.dumps({**OWN, "processor_class": "LlavaProcessor"}))
    return path


def asked_of_transformers(model: Path, num_tokens: int) -> Callable[..., tuple[list[int], list[int]]]:
    """Return a function: pictures and a question → the prompt's tokens, and those of greedy generation."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"), bos_token="<s>")
    processor = LlavaProcessor(CLIPImageProcessorPil(**SIZES), tokenizer, chat_template=TEMPLATE, **OWN)
    whole = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()

    def ask(*pictures: Any, question: str = QUESTION) -> tuple[list[int], list[int]]:
        parts = [{"type": "text", "text": question}, *[{"type": "image"}] * len(pictures)]
        text = processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
        inputs = processor(text=text, images=list(pictures) or None, return_tensors="pt")
        with torch.no_grad():
            made = whole.generate(**inputs, max_new_tokens=num_tokens, do_sample=False, eos_token_id=None)
        prompt = inputs["input_ids"][0].tolist()
        return prompt, made[0, len(prompt) :].tolist()

    return ask
