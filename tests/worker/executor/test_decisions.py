"""Labels' probabilities on real models are transformers' in float32, whatever happens on the way to them."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from dormouse_worker.common.task_messages import AddDecision
from dormouse_worker.engine.decisions import requests_of
from dormouse_worker.front.decisions.labels import decided, nodes_of
from tests.worker.executor.test_groups import MODELS, directory_of, group_of, make_engine  # noqa: F401  fixtures

STATE = [(i * i * 7 + 3) % 250 for i in range(21)]
QUESTIONS = [[i, 40 + i, 7] for i in range(6)]
LABELS = ((65,), (66, 3, 9), (66, 4), (100, 101))  # of one token and of several


@pytest.fixture(scope="module")
def reference(directory_of):  # noqa: F811  a fixture
    """Return a function architecture → of each question the labels' softmax and their mass, by transformers."""

    @torch.no_grad()
    def read(architecture):
        model = AutoModelForCausalLM.from_pretrained(directory_of(architecture), dtype=torch.float32).eval()

        def logprob(prompt, label):
            logits = model(torch.tensor([prompt + list(label)])).logits[0].double().log_softmax(-1)
            return sum(logits[len(prompt) - 1 + place, token] for place, token in enumerate(label))

        found = []
        for question in QUESTIONS:
            logprobs = torch.stack([logprob(STATE + question, label) for label in LABELS])
            found.append((logprobs.softmax(-1).tolist(), float(logprobs.exp().sum())))
        return found

    return read


def ask(engine):
    """Return of each question what its labels come to."""
    nodes = nodes_of(LABELS)
    branches = [question + list(node.path) for question in QUESTIONS for node in nodes]
    keys = [str(number) for number in range(len(branches))]
    named = [list(node.token_ids) for _ in QUESTIONS for node in nodes]
    for request in requests_of(AddDecision(keys, STATE, branches, named)):
        assert engine.add(request) is None
    told = {}
    while (step := engine.step()) is not None:
        assert not step.failed
        told |= {output.request_id: output.logprobs[0].named for output in step.outputs if output.token_ids}
    engine.check_integrity()
    reads = iter(zip(keys, named, strict=True))
    answers = []
    for _ in QUESTIONS:
        read = {}
        for node in nodes:
            key, token_ids = next(reads)
            read[node.path] = dict(zip(token_ids, told[key], strict=True))
        answers.append(decided(LABELS, read))
    return answers


@pytest.mark.parametrize(
    ("model", "shape", "fields"),
    [
        ("llama", (1, 1), {"caches": True}),
        ("llama", (1, 1), {"num_blocks": 11, "tokens": 16}),  # chunks, and too few blocks for all at once
        ("llama without kernels", (1, 1), {"caches": True, "tokens": 16}),
        ("llama", (2, 1), {"caches": True}),
        ("qwen3", (1, 2), {"caches": True}),
        ("gemma2", (1, 1), {"caches": True, "tokens": 16}),
    ],
    ids=str,
)
def test_probabilities_are_transformers(group_of, reference, model, shape, fields):  # noqa: F811  a fixture
    group, _ = group_of(model, shape)
    engine = make_engine(group, **fields)
    expected = reference(MODELS[model][0])
    for _ in range(2):  # also with what the first time left in the cache
        for found, (probabilities, mass) in zip(ask(engine), expected, strict=True):
            assert found.probabilities == pytest.approx(probabilities, abs=1e-5)
            assert found.label_mass == pytest.approx(mass, abs=1e-5)
