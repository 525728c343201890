"""Log-probabilities: of the raw distribution, as many as asked for, within 1e-4 of transformers; in bounded memory."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from dormouse_api.limits import MAX_LOGPROBS
from dormouse_worker.model.sampling.sampler import prompt_logprobs, sample
from tests.worker.model.sampler_kit import random_logits, row

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]))
PROMPT = [(i * i * 7 + 3) % 250 for i in range(40)]


@pytest.fixture(scope="module")
def model(tiny_model):
    """Return transformers' own tiny llama in float32."""
    return AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32).eval()


def test_they_are_those_of_the_raw_distribution():
    masked = row(
        output=[1, 1],
        logprobs=2,
        min_tokens=9,
        stop_token_ids=(0,),
        frequency_penalty=0.1,
        logit_bias={4: -1.0},
        temperature=1e-6,
    )
    choice, silent = sample(LOGITS.expand(2, -1) + 3.0, [masked, row()])
    assert choice.token_id == 1
    assert choice.logprobs.sampled == pytest.approx(float(LOGITS[1]))
    assert choice.logprobs.top_ids == [0, 1]
    assert choice.logprobs.top_logprobs == pytest.approx(LOGITS[:2].tolist())
    assert silent.logprobs is None


def test_each_row_gets_as_many_as_it_asked_for():
    choices = sample(LOGITS.expand(3, -1), [row(logprobs=0), row(logprobs=3), row(logprobs=20)])
    assert [len(choice.logprobs.top_ids) for choice in choices] == [0, 3, 5]
    assert [len(choice.logprobs.top_logprobs) for choice in choices] == [0, 3, 5]


def test_equally_likely_tokens_come_by_id():
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]])
    (choice,) = sample(logits, [row(logprobs=4)])
    assert choice.logprobs.top_ids == [1, 3, 0, 2]
    assert choice.token_id == 1


@torch.no_grad()
def test_sampled_ones_are_within_a_ten_thousandth_of_transformers(model):
    logits = model(torch.tensor([PROMPT])).logits[0]
    rows = [row(i, temperature=2.0, seed=i, logprobs=MAX_LOGPROBS) for i in range(len(PROMPT))]
    expected = logits.double().log_softmax(-1)
    for choice, line in zip(sample(logits, rows), expected, strict=True):
        assert choice.logprobs.sampled == pytest.approx(float(line[choice.token_id]), abs=1e-4)
        assert choice.logprobs.top_logprobs == pytest.approx(line[choice.logprobs.top_ids].tolist(), abs=1e-4)
        assert choice.logprobs.top_logprobs == pytest.approx(line.topk(MAX_LOGPROBS).values.tolist(), abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("slice_elements", [1, 260 * 7, 1 << 22])
def test_those_of_a_prompt_are_within_a_ten_thousandth_of_transformers(model, slice_elements):
    logits = model(torch.tensor([PROMPT])).logits[0]
    expected = logits.double().log_softmax(-1)
    report = prompt_logprobs(logits[:-1], PROMPT[1:], 3, slice_elements=slice_elements)
    assert len(report) == len(PROMPT) - 1
    for i, one in enumerate(report):
        assert one.sampled == pytest.approx(float(expected[i, PROMPT[i + 1]]), abs=1e-4)
        assert one.top_ids == expected[i].topk(3).indices.tolist()
        assert one.top_logprobs == pytest.approx(expected[i].topk(3).values.tolist(), abs=1e-4)


@torch.no_grad()
def test_those_of_a_prompt_have_the_loss_that_transformers_computes(model):
    ids = torch.tensor([PROMPT])
    report = prompt_logprobs(model(ids).logits[0, :-1], PROMPT[1:], 0)
    assert -sum(one.sampled for one in report) / len(report) == pytest.approx(
        float(model(ids, labels=ids).loss), abs=1e-4
    )
    assert all(one.top_ids == [] == one.top_logprobs for one in report)


def test_those_of_a_prompt_may_come_in_chunks():
    logits, following = random_logits(11, 300), list(range(11))
    whole = prompt_logprobs(logits, following, 5)
    assert prompt_logprobs(logits[:4], following[:4], 5) + prompt_logprobs(logits[4:], following[4:], 5) == whole


def test_half_precision_logits_are_worked_with_in_float32():
    logits = random_logits(3, 300).bfloat16()
    assert prompt_logprobs(logits, [1, 2, 3], 2) == prompt_logprobs(logits.float(), [1, 2, 3], 2)


class LargestFloat32(TorchDispatchMode):
    """Notes how many elements the largest float32 tensor has that any operation gives."""

    num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                self.num_elements = max(self.num_elements, tensor.numel())
        return result


def test_those_of_a_prompt_are_worked_through_in_slices():
    logits = random_logits(50, 300).bfloat16()
    with LargestFloat32() as largest:
        prompt_logprobs(logits, [0] * 50, 5, slice_elements=7 * 300 + 299)
    assert largest.num_elements == 7 * 300


def test_no_tokens_have_none():
    assert prompt_logprobs(torch.empty(0, 300), [], 5) == []


def test_named_tokens_are_told_of_likely_or_not_and_each_row_names_its_own():
    choices = sample(
        LOGITS.expand(3, -1),
        [row(logprobs=0, logprob_token_ids=(4, 0)), row(logprobs=1), row(logprobs=0, logprob_token_ids=(2, 2, 1))],
    )
    assert [choice.logprobs.named for choice in choices] == [
        pytest.approx([float(LOGITS[4]), float(LOGITS[0])]),
        [],
        pytest.approx([float(LOGITS[2]), float(LOGITS[2]), float(LOGITS[1])]),
    ]
    assert choices[1].logprobs.top_ids == [0]
