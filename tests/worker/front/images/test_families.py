"""Tokens and tensors are those of transformers' own processors, of every family, whatever the pictures' sizes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from dormouse_worker.files.vision_files import read_vision
from dormouse_worker.front.images.placeholders import ImageFacts, WrongCount, expand, find_spans
from dormouse_worker.front.text.chat import ChatTemplates
from dormouse_worker.pictures.program import Processing
from tests.worker.front.images.kit import BOS, FAMILIES, Family, encoded, picture

SIZES = [(40, 30), (200, 50), (50, 180), (64, 64), (9, 9)]
JOINED = {"pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask"}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    return Family(request.param, tmp_path_factory.mktemp("family") / request.param)


@pytest.fixture(scope="module")
def spec(family):
    found = read_vision(family.folder, family.config)
    assert found is not None
    return found


@pytest.fixture
def process(spec, tmp_path):
    """Process a picture; return its facts and its tensors."""
    setup = {"processor": spec.processor, "settings": json.loads(json.dumps(spec.settings)), "max_pixels": 10**6}
    processing = Processing(setup | {"arguments": dict(spec.arguments), "video": None})

    def run(image, is_of_several=False):
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(encoded(image))
        told = json.loads(processing.run(source, target, is_of_several=is_of_several))
        return SimpleNamespace(facts=ImageFacts(told["shapes"], told["values"]), tensors=load_file(target), **told)

    return run


def chat(num_images):
    parts = [
        {"type": "text", "text": "What is "},
        *[{"type": "image"}, {"type": "text", "text": " and é "}] * num_images,
    ]
    return [{"role": "user", "content": parts}]


@pytest.mark.parametrize("sizes", [SIZES[:1], SIZES[1:2], SIZES[2:3], SIZES[3:], SIZES[:3]])
def test_tokens_and_tensors_are_those_of_transformers(family, spec, process, sizes):
    images = [picture(*size, seed=seed) for seed, size in enumerate(sizes)]
    text, theirs = family.oracle(chat(len(images)), images)
    ours = [process(image, spec.has_several and len(images) > 1) for image in images]
    whole = expand(text, spec, [one.facts for one in ours])
    token_ids = family.processor.tokenizer(whole, add_special_tokens=not text.startswith(BOS))["input_ids"]
    assert token_ids == theirs["input_ids"][0].tolist()
    spans = find_spans(token_ids, spec, [one.facts for one in ours])
    rows = [sum(count for _, count in each) for each in spans]
    assert sum(rows) == token_ids.count(spec.image_token_id) > 0
    assert all(rows)
    for name in JOINED & theirs.keys():
        _check_equal(name, theirs[name].numpy(), [one.tensors[name] for one in ours])
    assert all(set(one.tensors) <= theirs.keys() for one in ours), "nothing that the model does not take"


def _check_equal(name, theirs, ours):
    """Compare what they made of all images at once with ours of each: they pad with zeros to the largest one."""
    if theirs.ndim == ours[0].ndim and theirs.shape[0] == sum(map(len, ours)):
        start = 0
        for one in ours:
            padded = theirs[start : start + len(one)]
            cut = tuple(slice(0, size) for size in one.shape)
            np.testing.assert_array_equal(padded[cut], one, err_msg=name)
            start += len(one)
    else:  # tiles of all images in one row: [1, tiles of all, ...]
        np.testing.assert_array_equal(theirs, np.concatenate(ours, axis=1), err_msg=name)


def test_equal_pictures_have_one_digest_and_others_another(process):
    one, same, other = process(picture(40, 30)), process(picture(40, 30)), process(picture(40, 30, seed=1))
    assert one.digest == same.digest != other.digest


def test_a_text_with_places_of_its_own_is_refused(spec, process):
    facts = process(picture(40, 30)).facts
    with pytest.raises(WrongCount, match=r"2 places of .* for 1 images"):
        expand(f"{spec.marker} and {spec.marker}", spec, [facts])
    with pytest.raises(WrongCount, match="0 places"):
        expand("nothing", spec, [facts])
    with pytest.raises(WrongCount, match="tokens of images for"):
        find_spans([spec.image_token_id], spec, [facts, facts])


def test_our_template_says_what_theirs_does(family):
    templates = ChatTemplates({"default": family.template}, {}, now=lambda: None, max_chars=10**6, wants_parts=True)
    messages = [{"role": "system", "content": "Be brief."}, *chat(2)]
    told = templates.render(messages, tools=None, add_generation_prompt=True, template_args={})
    messages[0]["content"] = [{"type": "text", "text": "Be brief."}]
    assert told == family.processor.apply_chat_template(messages, add_generation_prompt=True)
