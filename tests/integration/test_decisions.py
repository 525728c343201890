"""A real worker decides behind the door of `dormouse serve`: OpenAI's client gets transformers' numbers."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.decisions.questions import asked
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.test_embeddings import ASLEEP, WAIT_S, open_door
from tests.integration.test_sleep import sleep, wake

STATE = "The nut is a hazelnut. " * 8
OPTIONS = [f"kind {number}" for number in range(30)]  # their labels have two digits, a token each
QUESTIONS = [
    {"type": "predicate", "instructions": "Is it a nut?", "name": "nut"},
    {"type": "choice", "instructions": "Which?", "choices": [{"value": option} for option in OPTIONS]},
    {
        "type": "score",
        "instructions": "How ripe?",
        "levels": [{"label": "not"}, {"label": "rather"}, {"label": "very"}],
    },
]
ASKED = [
    pb.DecideQuestion(instructions="Is it a nut?", predicate=pb.DecideQuestion.Predicate()),
    pb.DecideQuestion(instructions="Which?", choice={"options": [pb.DecideOption(name=one) for one in OPTIONS]}),
    pb.DecideQuestion(
        instructions="How ripe?", score={"levels": [pb.DecideOption(name=one) for one in ("not", "rather", "very")]}
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with random weights that takes long prompts."""
    return write_tiny_model(tmp_path_factory.mktemp("random"), max_position_embeddings=1024)


@pytest.fixture(scope="module")
def decider(start_worker, model):
    """Its worker."""
    worker = start_worker(model, "--max-model-len", "1024")
    worker.start()
    return worker


@torch.no_grad()
def reference(directory):
    """Return of each question the softmax over its labels' log-probabilities, and their mass, by transformers."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def logprob(prompt, label):
        logits = model(torch.tensor([prompt + label])).logits[0].double().log_softmax(-1)
        return sum(logits[len(prompt) - 1 + place, token] for place, token in enumerate(label))

    found = []
    for question in map(asked, ASKED):
        prompt = tokenizer.encode(f"<s><|user|>{STATE}\n\n{question.text}</s><|assistant|>").ids
        logprobs = torch.stack([logprob(prompt, tokenizer.encode(label).ids) for label in question.labels])
        found.append((logprobs.softmax(-1).tolist(), float(logprobs.exp().sum())))
    return found


def probabilities(answer):
    """Return what an answer says of each option."""
    if answer.type == "predicate":
        return [answer.probability, 1 - answer.probability]
    return [one.probability for one in answer.probabilities]


def test_a_call_that_comes_during_a_sleep_waits_and_gets_the_numbers_of_before(decider, model):
    expected = reference(model)
    with (
        open_door(decider) as address,
        openai.OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0, timeout=WAIT_S) as client,
    ):

        def ask():
            return client.decisions.create(model="tiny", input=STATE, questions=QUESTIONS)

        before = ask()
        for answer, (softmax, mass) in zip(before.answers, expected, strict=True):
            assert probabilities(answer) == pytest.approx(softmax, abs=1e-5)
            assert answer.label_mass == pytest.approx(mass, abs=1e-5)
        shared = 2 * (len(STATE) // 16) * 16  # of the second question and the third
        assert before.usage.input_tokens_details.cached_tokens >= shared
        assert sleep(decider, 2).state == ASLEEP
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(ask)
            wake(decider)
            assert held.result(WAIT_S).answers == before.answers
