"""Pairs are those that the tokenizer's library makes, kinds of tokens included."""

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import BertProcessing, ByteLevel, RobertaProcessing, TemplateProcessing

from dormouse_worker.front.text.tokenizer import TextCodec
from dormouse_worker.model.testing import write_tiny_tokenizer

BEGIN, BETWEEN = 1, 2
DOCUMENTS = ["nut", "a nest of hazel", " "]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A tokenizer without a processor behind it."""
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(directory)
    return str(directory / "tokenizer.json")


def processors(tokenizer):
    begin, between = (tokenizer.id_to_token(token_id) for token_id in (BEGIN, BETWEEN))
    return {
        "none": None,
        "bert": BertProcessing((between, BETWEEN), (begin, BEGIN)),
        "roberta": RobertaProcessing((between, BETWEEN), (begin, BEGIN)),
        "bytes": ByteLevel(),
        "template of one kind": TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {between} $B", special_tokens=[(begin, BEGIN), (between, BETWEEN)]
        ),
    }


@pytest.mark.parametrize("name", ["none", "bert", "roberta", "bytes", "template of one kind"])
def test_a_pair_has_the_ids_and_kinds_that_the_library_gives_it(file, name):
    tokenizer = Tokenizer.from_file(file)
    if (processor := processors(tokenizer)[name]) is not None:
        tokenizer.post_processor = processor
    found = TextCodec(tokenizer).encode_pairs("hazel", DOCUMENTS, 0)
    for pair, document in zip(found, DOCUMENTS, strict=True):
        whole = tokenizer.encode("hazel", document)
        start = whole.type_ids.index(1) if 1 in whole.type_ids else 0
        assert (pair.token_ids, pair.second_start) == (whole.ids, start)
