"""How a model sees, from its files alone: what is missing or unknown is named."""

import json

import pytest

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.vision_files import read_vision

CONFIG = {"model_type": "llava_onevision", "vision_config": {}, "image_token_index": 5}
OWN = {"num_image_tokens": 729, "image_processor": {"image_processor_type": "LlavaOnevisionImageProcessorFast"}}


def read(tmp_path, **own):
    (tmp_path / "processor_config.json").write_text(json.dumps({**OWN, **own}))
    return read_vision(tmp_path, CONFIG)


def test_how_many_tiles_an_image_may_have_stands_in_a_word(tmp_path):
    assert read(tmp_path).max_tiles == 9
    assert read(tmp_path, vision_aspect_ratio="anyres_max_4").max_tiles == 4


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"vision_aspect_ratio": "square"}, "vision_aspect_ratio is 'square'; known is anyres_max_NUMBER"),
        ({"num_image_tokens": None}, "num_image_tokens is missing"),
        ({"image_processor": {}}, "neither processor_config.json nor preprocessor_config.json tells"),
        ({"image_processor": {"image_processor_type": "Eye"}}, "image_processor_type is 'Eye'; known are CLIP"),
    ],
)
def test_what_is_unknown_is_named(tmp_path, own, words):
    with pytest.raises(ModelInvalid, match=words):
        read(tmp_path, **own)
