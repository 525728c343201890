"""Sounds all the way: OpenAI's client, a gateway, a real worker; tokens are those of transformers."""

from __future__ import annotations

import base64

import openai
import pytest
import torch
from transformers import AutoModelForMultimodalLM

from dormouse_worker.model.testing_vision import write_tiny_vision_model
from dormouse_worker.model.testing_vision_families import IMAGE
from tests.integration.test_serve import WAIT_S, serving
from tests.worker.front.images.sounds import give_ears, heard_by_transformers, noise, written

NUM_TOKENS = 12
SOUNDS = [noise(15_000), noise(9_000, seed=1)]


def content(kinds):
    """Return a question about sounds, in these containers."""
    files = [base64.b64encode(written(*one)).decode() for one in zip(SOUNDS, kinds, strict=True)]
    sounds = [
        {"type": "input_audio", "input_audio": {"data": file, "format": kind.lower()}}
        for file, kind in zip(files, kinds, strict=True)
    ]
    return [sounds[0], {"type": "text", "text": "What is it, and what is this?"}, sounds[1]]


def asked_of_transformers(path):
    """Return the prompt's tokens, and those of greedy generation."""
    parts = [{"type": "audio"}, {"type": "text", "text": "What is it, and what is this?"}, {"type": "audio"}]
    inputs = heard_by_transformers(path, parts, SOUNDS)
    whole = AutoModelForMultimodalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        made = whole.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)
    prompt = inputs["input_ids"][0].tolist()
    return prompt, made[0, len(prompt) :].tolist()


def test_openais_example_with_sounds_says_what_transformers_says(tmp_path):
    path = give_ears(write_tiny_vision_model(tmp_path, "qwen2_audio"))
    prompt, tokens = asked_of_transformers(path)
    with (
        serving(path, "--served-model-name", "ears", "--max-model-len", "256") as one,
        openai.OpenAI(
            api_key="none", base_url=one.until_said("OpenAI's API on ").split()[-1], max_retries=0, timeout=WAIT_S
        ) as client,
    ):
        for kinds in (("WAV", "FLAC"), ("FLAC", "WAV")):  # the same sounds: the second question finds its prefix
            told = client.chat.completions.create(
                model="ears",
                messages=[{"role": "user", "content": content(kinds)}],
                max_tokens=NUM_TOKENS,
                temperature=0,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            assert told.prompt_token_ids == prompt
            assert told.choices[0].token_ids == tokens
            assert told.usage.prompt_tokens_details.audio_tokens == prompt.count(IMAGE)
        assert told.usage.prompt_tokens_details.cached_tokens > 0
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aHVzaA=="}}
        with pytest.raises(openai.BadRequestError, match="this model sees nothing"):
            client.chat.completions.create(model="ears", messages=[{"role": "user", "content": [image]}])
