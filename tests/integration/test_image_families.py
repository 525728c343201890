"""Other kinds of models that see, all the way through a worker: 3-D positions, tiles, and lines of an image."""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.model.testing_vision import write_tiny_vision_model
from dormouse_worker.model.testing_vision_families import IMAGE
from tests.integration.eyes import QUESTION, TEMPLATE
from tests.integration.test_images import NUM_TOKENS
from tests.worker.front.images.kit import encoded, picture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_QWEN = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
# family: its processor, the image processor of Pillow, tokens from IMAGE on and their names, arguments of both, what a
# template says
KINDS = {
    "qwen2_vl": (
        ("qwen2_vl", "Qwen2VLProcessor"),
        ("qwen2_vl", "Qwen2VLImageProcessor"),
        dict(zip(("image_token", "video_token", "vision_start_token", "vision_end_token"), _QWEN, strict=True)),
        {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 64, "max_pixels": 1024},
        {},
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "idefics3": (
        ("idefics3", "Idefics3Processor"),
        ("idefics3", "Idefics3ImageProcessor"),
        {
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
        },
        {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}},
        {"image_seq_len": 4},
        "<image>",
    ),
    "pixtral": (
        ("pixtral", "PixtralProcessor"),
        ("pixtral", "PixtralImageProcessor"),
        {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
        {"size": {"longest_edge": 32}, "patch_size": {"height": 4, "width": 4}},
        {"patch_size": 4, "spatial_merge_size": 1},
        "[IMG]",
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    """A model's folder, and transformers' processor of it."""
    (module, cls), (image_module, image_cls), tokens, settings, own, said = KINDS[request.param]
    path = write_tiny_vision_model(tmp_path_factory.mktemp("eyes"), request.param)
    inner = Tokenizer.from_file(str(path / "tokenizer.json"))
    inner.add_special_tokens(list(tokens.values()))
    assert inner.token_to_id(next(iter(tokens.values()))) == IMAGE
    inner.save(str(path / "tokenizer.json"))
    told = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**told, "extra_special_tokens": tokens}))
    template = TEMPLATE.replace("<image>", said)
    (path / "chat_template.jinja").write_text(template)
    (path / "preprocessor_config.json").write_text(json.dumps({**settings, "image_processor_type": image_cls}))
    (path / "processor_config.json").write_text(json.dumps({**own, "processor_class": cls}))
    pil = importlib.import_module(f"transformers.models.{image_module}.image_processing_pil_{image_module}")
    sys.modules.setdefault(f"transformers.models.{image_module}.image_processing_{image_module}", pil)  # torchvision's
    made = getattr(importlib.import_module(f"transformers.models.{module}.processing_{module}"), cls)
    made.check_argument_for_proper_class = lambda *_: None  # of videos, for which torchvision is needed
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(path / "tokenizer.json"), bos_token="<s>", extra_special_tokens=tokens
    )
    videos = {"video_processor": SimpleNamespace()} if "qwen" in request.param else {}
    image_processor = getattr(pil, f"{image_cls}Pil")(**settings)
    return path, made(image_processor=image_processor, tokenizer=tokenizer, chat_template=template, **videos, **own)


@pytest.mark.parametrize("size", [(40, 30), (20, 60)])
def test_a_worker_sees_what_transformers_sees(start_worker, kind, size):
    path, processor = kind
    image = picture(*size)
    parts = [{"type": "text", "text": QUESTION}, {"type": "image"}]
    text = processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
    inputs = processor(text=[text], images=[[image]], return_tensors="pt")
    whole = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        made = whole.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)
    worker = start_worker(path, "--max-model-len", "192", "--max-num-batched-tokens", "16")
    worker.start()
    asked = [pb.ContentPart(text=QUESTION), pb.ContentPart(image=encoded(image))]
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", parts=asked)])
    told = worker.inference.Tokenize(pb.TokenizeRequest(chat=chat), timeout=200)
    assert list(told.token_ids) == inputs["input_ids"][0].tolist()
    params = pb.SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    for _ in range(2):
        request = pb.GenerateRequest(chat=chat, sampling_params=params)
        messages = list(worker.inference.Generate(request, timeout=200))
        tokens = [token for message in messages for token in message.token_ids]
        assert tokens == made[0, inputs["input_ids"].shape[1] :].tolist()
    assert messages[-1].usage.image_tokens == list(told.token_ids).count(IMAGE)
    worker.close()
