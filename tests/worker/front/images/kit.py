"""Models that see, as small as they come: their files, and transformers' own processors of them."""

import importlib
import io
import json
import sys
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

BOS = "<s>"
_PLAIN = (
    "{% for m in messages %}{{ m['role'] }}: {% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_TILES = {"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"}
_GEMMA = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
_INTERN = {
    "context_image_token": "<IMG_CONTEXT>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "video_token": "<video>",
}
_PIXTRAL = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
_AYA = {
    "image_token": "<image>",
    "start_of_img_token": "<|START_OF_IMG|>",
    "end_of_img_token": "<|END_OF_IMG|>",
    "img_patch_token": "<|IMG_PATCH|>",
}
_QWEN = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
_CLIP = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
_SIGLIP = {"size": {"height": 32, "width": 32}}
_NEXT = {**_CLIP, "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]]}
_SPLIT = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
_STRATEGY = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
# model_type: folder and class of the processor; of the image processor; arguments of both; tokens; what a template says
FAMILIES = {
    "llava": (("llava", "LlavaProcessor"), ("clip", "CLIP"), _CLIP, _STRATEGY, {"image_token": "<image>"}, "<image>"),
    "llava-siglip": (
        ("llava", "LlavaProcessor"),
        ("siglip", "Siglip"),
        _SIGLIP,
        {"patch_size": 8, "vision_feature_select_strategy": "full"},
        {"image_token": "<image>"},
        "<image>\n",
    ),
    "llava_next": (
        ("llava_next", "LlavaNextProcessor"),
        ("llava_next", "LlavaNext"),
        _NEXT,
        _STRATEGY,
        {"image_token": "<image>"},
        "<image>",
    ),
    "llava_onevision": (
        ("llava_onevision", "LlavaOnevisionProcessor"),
        ("llava_onevision", "LlavaOnevision"),
        {**_SIGLIP, "image_grid_pinpoints": _NEXT["image_grid_pinpoints"]},
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"},
        {"image_token": "<image>", "video_token": "<video>"},
        "<image>\n",
    ),
    "pixtral": (
        ("pixtral", "PixtralProcessor"),
        ("pixtral", "Pixtral"),
        {"size": {"longest_edge": 64}, "patch_size": {"height": 8, "width": 8}},
        {"patch_size": 8, "spatial_merge_size": 2},
        _PIXTRAL,
        "[IMG]",
    ),
    "mistral3": (
        ("pixtral", "PixtralProcessor"),
        ("pixtral", "Pixtral"),
        {"size": {"longest_edge": 64}, "patch_size": {"height": 8, "width": 8}},
        {"patch_size": 4, "spatial_merge_size": 4},
        _PIXTRAL,
        "[IMG]",
    ),
    "vipllava": (
        ("llava", "LlavaProcessor"),
        ("clip", "CLIP"),
        _CLIP,
        _STRATEGY,
        {"image_token": "<image>"},
        "<image>\n",
    ),
    "aya_vision": (
        ("aya_vision", "AyaVisionProcessor"),
        ("got_ocr2", "GotOcr2"),
        {**_SIGLIP, "max_patches": 4},
        {"patch_size": 8, "img_size": 32, "downsample_factor": 2},
        _AYA,
        "<image>",
    ),
    "idefics3": (
        ("idefics3", "Idefics3Processor"),
        ("idefics3", "Idefics3"),
        _SPLIT,
        {"image_seq_len": 4},
        {"image_token": "<image>", **_TILES},
        "<image>",
    ),
    "smolvlm": (
        ("smolvlm", "SmolVLMProcessor"),
        ("smolvlm", "SmolVLM"),
        _SPLIT,
        {"image_seq_len": 4},
        {"image_token": "<image>", **_TILES},
        "<image>",
    ),
    "qwen2_vl": (
        ("qwen2_vl", "Qwen2VLProcessor"),
        ("qwen2_vl", "Qwen2VL"),
        {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 12},
        {},
        _QWEN,
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "qwen2_5_vl": (
        ("qwen2_5_vl", "Qwen2_5_VLProcessor"),
        ("qwen2_vl", "Qwen2VL"),
        {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 12},
        {},
        _QWEN,
        "<|image_pad|>",
    ),
    "qwen3_vl": (
        ("qwen3_vl", "Qwen3VLProcessor"),
        ("qwen2_vl", "Qwen2VL"),
        {"patch_size": 16, "min_pixels": 32 * 32, "max_pixels": 32 * 32 * 12},
        {},
        _QWEN,
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "gemma3": (
        ("gemma3", "Gemma3Processor"),
        ("gemma3", "Gemma3"),
        _SIGLIP,
        {"image_seq_length": 4},
        _GEMMA,
        "<start_of_image>",
    ),
    "internvl": (
        ("internvl", "InternVLProcessor"),
        ("got_ocr2", "GotOcr2"),
        {**_SIGLIP, "max_patches": 4},
        {"image_seq_length": 4},
        _INTERN,
        "<IMG_CONTEXT>\n",
    ),
}


class Family:
    """A folder with a small model's files, and the oracle."""

    def __init__(self, name, folder):
        (module, cls), (image_module, image_cls), settings, own, tokens, said = FAMILIES[name]
        self.name, self.folder, self.template = name, folder, _PLAIN.replace("IMAGE", said)
        pil = importlib.import_module(f"transformers.models.{image_module}.image_processing_pil_{image_module}")
        sys.modules.setdefault(
            f"transformers.models.{image_module}.image_processing_{image_module}", pil
        )  # torchvision's
        found = importlib.import_module(f"transformers.models.{module}.processing_{module}")
        if hasattr(found, "num2words"):
            found.num2words = found.num2words or str  # for videos only
        tokenizer = make_tokenizer(tokens)
        image_processor = getattr(pil, f"{image_cls}ImageProcessorPil")(**settings)
        videos = (
            {"video_processor": SimpleNamespace(num_frames=1, fps=1, do_sample_frames=False)}
            if cls.startswith(("Qwen", "Smol", "Intern", "LlavaOne"))
            else {}
        )
        made = getattr(found, cls)
        made.check_argument_for_proper_class = lambda *_: None  # torchvision is not there
        self.processor = made(image_processor=image_processor, tokenizer=tokenizer, **videos, **own)
        self.processor.chat_template = self.template
        image_token = next(
            tokens[one] for one in ("img_patch_token", "context_image_token", "image_token") if one in tokens
        )
        kind = {"llava-siglip": "llava", "pixtral": "llava"}.get(name, name)
        encoder = {
            "model_type": "pixtral" if name in ("pixtral", "mistral3") else "siglip_vision_model",
            "patch_size": 8,
        }
        self.config = {
            "model_type": kind,
            "vision_config": encoder,
            "text_config": {"model_type": "llama", "vocab_size": len(tokenizer)},
            "image_token_id": tokenizer.convert_tokens_to_ids(image_token),
        }
        folder.mkdir(exist_ok=True)
        tokenizer.save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(self.template)
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "preprocessor_config.json").write_text(
            json.dumps({**image_processor.to_dict(), "image_processor_type": f"{image_cls}ImageProcessorFast"})
        )
        (folder / "processor_config.json").write_text(json.dumps({**own, "processor_class": cls}))

    def oracle(self, messages, images):
        """Return what transformers makes of a chat with these pictures."""
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        more = {"add_special_tokens": False} if text.startswith(BOS) else {}
        return text, self.processor(text=[text], images=[images], return_tensors="pt", padding=False, **more)


def make_tokenizer(tokens: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Return one of bytes, with a token before each text and the named ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    more = [
        "<|vision_start|>",
        "<|vision_end|>",
        "<end_of_utterance>",
        *(f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2)),
    ]
    inner.add_special_tokens([AddedToken(one, special=True) for one in (BOS, *tokens.values(), *more)])
    inner.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, inner.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=BOS, extra_special_tokens=dict(tokens))


def picture(width, height, seed=0, mode="RGB"):
    """Return a picture that is not the same anywhere."""
    rng = np.random.default_rng(seed)
    shades = rng.integers(0, 256, (max(2, height // 4), max(2, width // 4), 3), dtype=np.uint8)
    return Image.fromarray(shades).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def encoded(image, kind="PNG", **more):
    """Return a picture as a file."""
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()
