"""A soft prompt's directory is checked before anything is allocated; every refusal names what is wrong."""

from __future__ import annotations

import pytest

from dormouse_worker.common.errors import AdapterInvalid
from dormouse_worker.files.adapter_config import parse_config
from dormouse_worker.files.adapter_files import check_adapter_files
from dormouse_worker.files.soft_prompt_config import KeyShape, SoftPromptConfig
from dormouse_worker.files.soft_prompt_files import PromptRoom
from tests.worker.files.test_adapter_files import BASE, digest_of, write

FIELDS = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 5, "token_dim": 4}
TENSORS = {"prompt_embeddings": ("F32", [5, 4])}
ROOM = PromptRoom(size=4, num_numbers=24)

KEYS = KeyShape(num_layers=3, num_kv_heads=2, head_size=2)
KEY_FIELDS = {
    "peft_type": "PREFIX_TUNING",
    "num_virtual_tokens": 2,
    "token_dim": 4,
    "num_attention_heads": 2,
    "num_layers": 3,
}


def refusal(directory, fields=None, tensors=TENSORS, room=ROOM):
    written = write(directory, {**FIELDS, **(fields or {})}, tensors)
    with pytest.raises(AdapterInvalid) as caught:
        check_adapter_files(written, BASE, max_rank=8, room=room)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "P_TUNING"])
def test_its_vectors_are_found_and_read(tmp_path, kind):
    files = check_adapter_files(write(tmp_path, {**FIELDS, "peft_type": kind}, TENSORS), BASE, max_rank=8, room=ROOM)
    assert (files.rank, files.num_virtual_tokens, files.pairs) == (0, 5, {})
    read = []
    files.read(lambda tensor, raw: read.append((tensor, len(raw))))
    assert read == [(files.prompt, 80)]


def test_keys_and_values_are_found_where_the_base_keeps_as_many(tmp_path):
    tensors = {"prompt_embeddings": ("F32", [2, KEYS.size])}
    room = PromptRoom(size=4, num_numbers=2 * KEYS.size, keys=KEYS)
    files = check_adapter_files(write(tmp_path, KEY_FIELDS, tensors), BASE, max_rank=8, room=room)
    assert (files.num_virtual_tokens, files.has_keys) == (2, True)


@pytest.mark.parametrize(
    ("fields", "keys", "words"),
    [
        ({"num_attention_heads": 1}, KEYS, "say 3 layers of 1 heads of 4; this base keeps 3 layers of 2 heads of 2"),
        ({"num_layers": None}, KEYS, "num_layers is None; allowed are 1 to 1024"),
        ({"num_attention_heads": 5}, KEYS, "num_attention_heads is 5; allowed are 1 to 4"),
        ({"num_virtual_tokens": 3}, KEYS, "num_virtual_tokens is 3; a slot of max_lora_rank holds 2"),
        ({}, "it has windows", "is 'PREFIX_TUNING', which brings keys and values; it has windows"),
    ],
    ids=str,
)
def test_keys_and_values_that_do_not_fit_are_refused_by_name(tmp_path, fields, keys, words):
    room = PromptRoom(size=4, num_numbers=2 * KEYS.size, keys=keys)
    assert words in refusal(tmp_path, {**KEY_FIELDS, **fields}, room=room)


def test_its_digest_tells_another_number_of_vectors(tmp_path):
    found = []
    for number in (4, 5):
        fields, tensors = {**FIELDS, "num_virtual_tokens": number}, {"prompt_embeddings": ("F32", [number, 4])}
        directory = write(tmp_path / str(number), fields, tensors)
        found.append(digest_of(check_adapter_files(directory, BASE, max_rank=8, room=ROOM)))
    assert len({*found}) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_virtual_tokens": 0}, "num_virtual_tokens is 0; allowed are 1 to 8192"),
        ({"num_virtual_tokens": True}, "num_virtual_tokens is True"),
        ({"num_virtual_tokens": 8193}, "num_virtual_tokens is 8193; allowed are 1 to 8192"),
        ({"num_virtual_tokens": 7}, "num_virtual_tokens is 7; a slot of max_lora_rank holds 6"),
        ({"token_dim": "4"}, "token_dim is '4'; allowed are 1 to 65536"),
        ({"token_dim": 3}, "token_dim is 3; embedded tokens of this base have 4 numbers"),
        ({"num_transformer_submodules": 2}, "num_transformer_submodules is 2"),
        ({"modules_to_save": ["score"]}, "modules_to_save is ['score']"),
    ],
    ids=str,
)
def test_what_is_not_computed_is_refused_by_name(tmp_path, fields, words):
    assert words in refusal(tmp_path, fields)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "the weights have no tensor prompt_embeddings"),
        ({**TENSORS, "mlp_head.0.weight": ("F32", [4, 4])}, "tensor 'mlp_head.0.weight' is none of a soft prompt's"),
        ({"prompt_embeddings": ("F32", [4, 4])}, "prompt_embeddings is [4, 4]; [5, 4] fits num_virtual_tokens"),
        ({"prompt_embeddings": ("I8", [5, 4])}, "prompt_embeddings is of type I8"),
    ],
    ids=str,
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, tensors, words):
    assert words in refusal(tmp_path, tensors=tensors)


def test_its_configuration_alone_tells_how_large_its_weights_can_be():
    assert parse_config(FIELDS, 8) == SoftPromptConfig("PROMPT_TUNING", 5, 4)
