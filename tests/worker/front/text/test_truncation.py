"""The first tokens of a text are those that tokenizing and cutting all of it gives, without doing so."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dormouse_worker.front.text.truncation import encode_first

WORDS = [
    "sleep",
    "wake",
    "nest",
    "nut",
    "winter",
    "acorn",
    "hazel",
    "dormouse",
    "hibernate",
    "torpor",
    "burrow",
    "tail",
    "whisker",
    "moonlight",
]
TEXT = " ".join(WORDS[(i * i) % len(WORDS)] for i in range(4000))


def trained(kind):
    """Return a tokenizer of its kind, with a token before and one after every text."""
    if kind == "wordpiece":
        made, trainer = Tokenizer(models.WordPiece(unk_token="[UNK]")), trainers.WordPieceTrainer
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    elif kind == "bytes":
        made, trainer = Tokenizer(models.BPE()), trainers.BpeTrainer
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    else:
        made, trainer = Tokenizer(models.Unigram()), trainers.UnigramTrainer
        made.pre_tokenizer = pre_tokenizers.Metaspace()
    unknown = {"unk_token": "[UNK]"} if kind == "unigram" else {}
    made.train_from_iterator([TEXT], trainer(vocab_size=150, special_tokens=["[CLS]", "[SEP]", "[UNK]"], **unknown))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return made


@pytest.fixture(scope="module", params=["wordpiece", "bytes", "unigram"])
def tokenizer(request):
    """One of each kind."""
    return trained(request.param)


@pytest.mark.parametrize("most", [1, 2, 3, 17, 512, 10**6])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    "text",
    [TEXT, TEXT.replace(" ", ""), " \n " + TEXT.replace(" ", ""), " \n" * 5000 + TEXT, "nut"],
    ids=["words", "one word", "space before one word", "space", "short"],
)
def test_they_are_those_of_the_whole_text_cut(tokenizer, most, special, text):
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    room = max(0, most - 2) if special else most
    expected = [0, *whole[:room], 1][:most] if special else whole[:room]
    assert encode_first(tokenizer, text, most, add_special_tokens=special) == expected


def test_no_more_than_the_beginning_is_tokenized(tokenizer):
    """A text without a last word that could be tokenized: the library would be asked for seconds."""
    encode_first(tokenizer, TEXT, 16, add_special_tokens=True)
    asked = []

    class Spy:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def encode_batch(self, texts, **how):
            asked.extend(map(len, texts))
            return tokenizer.encode_batch(texts, **how)

    assert encode_first(Spy(), TEXT, 16, add_special_tokens=True) == encode_first(
        tokenizer, TEXT, 16, add_special_tokens=True
    )
    assert sum(asked) < 1000 < len(TEXT)
