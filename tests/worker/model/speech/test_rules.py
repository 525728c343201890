"""The rules of Whisper's tokens against transformers' own processors, for outputs of every kind."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from dormouse_worker.engine.speech.batch import SpeechRow
from dormouse_worker.files.speech_files import SpeechSpec
from dormouse_worker.model.speech.rules import TokenRules

EOS, NO_TIMES, VOCAB = 20, 29, 60
SPEC = SpeechSpec(8, 25, 16, VOCAB, 21, EOS, NO_TIMES, 27, {"en": 22}, {"transcribe": 24}, (3, 21), (EOS, 5), 10)
PROMPT = [21, 22, 24]


def by_transformers(output, logits):
    config = GenerationConfig(eos_token_id=EOS, no_timestamps_token_id=NO_TIMES, max_initial_timestamp_index=10)
    ids, scores = torch.tensor([PROMPT + output]), logits[None]
    for process in (
        SuppressTokensAtBeginLogitsProcessor(SPEC.suppressed_first, len(PROMPT)),
        SuppressTokensLogitsProcessor(SPEC.suppressed),
        WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT)),
    ):
        scores = process(ids, scores)
    return scores[0]


@given(st.lists(st.sampled_from([0, 1, 3, EOS, *range(NO_TIMES + 1, VOCAB)]), max_size=6), st.integers(0, 1000))
@settings(max_examples=300, deadline=None)
def test_what_is_forbidden_is_what_transformers_forbids(output, seed):
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    row = SpeechRow(0, PROMPT + output, 0, len(PROMPT))
    ours = logits.clone()
    TokenRules(SPEC).apply(ours, row)
    assert torch.equal(ours, by_transformers(output, logits))


def test_without_times_only_what_is_suppressed_is_forbidden():
    logits = torch.zeros(VOCAB)
    TokenRules(SPEC).apply(logits, SpeechRow(0, [*PROMPT, 1], 0, len(PROMPT), timestamps=False))
    assert torch.isinf(logits).nonzero().flatten().tolist() == [3, 21]


def test_a_language_is_one_of_those_that_are_asked_for():
    logits = torch.arange(VOCAB, dtype=torch.float32)
    TokenRules(SPEC).apply(logits, SpeechRow(0, [21], 0, 1, language_ids=(22, 23)))
    assert int(logits.argmax()) == 23
    assert torch.isfinite(logits).sum() == 2
