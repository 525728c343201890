"""What a request may ask for, on the real small model: the same answer alone, beside others, continued elsewhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb

PROMPT = list(range(300, 340))
STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.7}


@dataclass
class Answer:
    """One choice as it came."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    boundaries: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # (tokens, bytes) after each message
    finish_reason: int = 0

    def take(self, message: pb.GenerateResponse) -> None:
        self.tokens += message.token_ids
        self.text += message.text
        self.logprobs += [position.sampled.logprob for position in message.logprobs]
        self.boundaries.append((len(self.tokens), len(self.text.encode())))
        self.finish_reason = message.finish_reason

    def emitted_bytes(self, num_tokens: int) -> int:
        """Return how much text the client had for certain when so many tokens had come."""
        return max(size for count, size in self.boundaries if count <= num_tokens)


def generate(worker, prompt=PROMPT, *, resume=None, **sampling):
    """Return the answers by choice, and the last message."""
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt), sampling_params=pb.SamplingParams(**sampling), resume=resume
    )
    answers: dict[int, Answer] = {}
    for message in worker.inference.Generate(request, timeout=60, metadata=proof(Role.GATEWAY)):
        answers.setdefault(message.choice_index, Answer()).take(message)
    return answers, message


@pytest.fixture(scope="module")
def other_worker(start_worker, tiny_model):
    """A second worker of the same model, with other chunks and blocks."""
    other = start_worker(tiny_model, "--max-num-batched-tokens", "16", "--block-size", "8")
    other.start()
    return other


@pytest.fixture(scope="module")
def byte_tokens(tiny_model):
    """The tokens of single bytes from which characters of one to three bytes can be made, in any order."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    text = "aé日"
    return sorted({token for char in text for token in tokenizer(char, add_special_tokens=False)["input_ids"]})


def check_every_cut(worker, other, *, n=1, prompt=PROMPT, **sampling):
    """Continue on the other worker after each number of tokens; everything must go on as if nothing had happened.

    Return the whole answers by choice.
    """
    answers, last = generate(worker, prompt, n=n, **sampling)
    assert sorted(answers) == list(range(n))
    assert last.usage.completion_tokens == sum(len(whole.tokens) for whole in answers.values())
    with ThreadPoolExecutor(8) as pool:  # beside each other: it is faster, and changes nothing
        cuts = [(index, whole, cut) for index, whole in answers.items() for cut in range(len(whole.tokens))]
        for future in [pool.submit(check_cut, other, *cut, prompt=prompt, **sampling) for cut in cuts]:
            future.result()
    return answers


def check_cut(other, index, whole, cut, *, prompt=PROMPT, **sampling):
    """Continue one choice after so many tokens; it must end as it did."""
    emitted = whole.emitted_bytes(cut)
    resume = pb.Resume(choice_index=index, output_token_ids=whole.tokens[:cut], emitted_utf8_bytes=emitted)
    rest_by_choice, rest_last = generate(other, prompt, resume=resume, **sampling)
    (rest,) = rest_by_choice.values()
    where = f"choice {index} cut after {cut} tokens"
    assert list(rest_by_choice) == [index], where
    assert rest.tokens == whole.tokens[cut:], where
    assert rest.text.encode() == whole.text.encode()[emitted:], where
    assert rest.logprobs == pytest.approx(whole.logprobs[cut:], abs=1e-4), where
    assert rest.finish_reason == whole.finish_reason, where
    assert rest_last.usage.completion_tokens == len(whole.tokens), where


def test_a_greedy_request_with_penalties_goes_on_elsewhere_after_any_token(worker, other_worker):
    sampling = {"temperature": 0, "max_tokens": 10, "min_tokens": 10, "logprobs": 0, **PENALTIES}
    whole = check_every_cut(worker, other_worker, **sampling)[0]
    assert whole.finish_reason == LENGTH


def test_half_characters_and_stop_strings_survive_any_cut(worker, other_worker, byte_tokens):
    """Random bytes: most cuts go through a character or through a stop string that has begun."""
    sampling = {"temperature": 50.0, "seed": 5, "max_tokens": 16, "allowed_token_ids": byte_tokens, "logprobs": 2}
    whole = check_every_cut(worker, other_worker, **sampling)[0]
    assert "\ufffd" in whole.text or any(ord(char) > 127 for char in whole.text)
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 3]
    stopped = check_every_cut(worker, other_worker, **sampling, stop=[stop])[0]
    assert (stopped.finish_reason, stopped.text) == (STOP, whole.text[: whole.text.index(stop)])


def test_choices_differ_and_each_goes_on_elsewhere_alone_after_any_token(worker, other_worker):
    sampling = {"temperature": 1.0, "seed": 9, "max_tokens": 8, "top_p": 0.95, "logprobs": 1, **PENALTIES}
    choices = check_every_cut(worker, other_worker, n=3, **sampling)
    assert len({tuple(choice.tokens) for choice in choices.values()}) == 3
    alone, last = generate(worker, **sampling)
    assert alone[0].tokens == choices[0].tokens
    assert last.usage.prompt_tokens == len(PROMPT)


def test_half_characters_and_stop_strings_of_each_choice_survive_any_cut(worker, other_worker, byte_tokens):
    """The stop string is the middle of one choice's text: that one ends by it, the others need not."""
    sampling = {"temperature": 50.0, "seed": 6, "max_tokens": 9, "allowed_token_ids": byte_tokens, **PENALTIES}
    whole, _ = generate(worker, n=3, **sampling)
    text = whole[1].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    choices = check_every_cut(worker, other_worker, n=3, **sampling, stop=[stop])
    assert (choices[1].finish_reason, choices[1].text) == (STOP, text[: text.index(stop)])
    assert LENGTH in {choices[0].finish_reason, choices[2].finish_reason}


def test_a_seeded_request_says_the_same_in_a_crowd(worker):
    sampling = {"temperature": 1.0, "seed": 3, "max_tokens": 24, "min_p": 0.02, "logit_bias": {70: 3.0}, **PENALTIES}
    alone, _ = generate(worker, **sampling)
    with ThreadPoolExecutor(8) as pool:
        crowd = [pool.submit(generate, worker, [n, *PROMPT], temperature=1.0, seed=n, max_tokens=30) for n in range(7)]
        beside, _ = generate(worker, **sampling)
        assert all(future.result() for future in crowd)
    assert beside[0].tokens == alone[0].tokens


def test_a_repeated_prompt_comes_from_the_cache_and_says_the_same(worker):
    prompt = list(range(1000, 1100))
    first, cold = generate(worker, prompt, temperature=0, max_tokens=8)
    second, warm = generate(worker, prompt, temperature=0, max_tokens=8)
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 96)
    assert second[0].tokens == first[0].tokens


def test_logprobs_of_prompt_and_output_equal_those_of_transformers(worker, tiny_model):
    """In chunks: a pass computes the logits of at most eight rows here."""
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=3),
    )
    messages = list(worker.inference.Generate(request, timeout=60))
    tokens = [token for message in messages for token in message.token_ids]
    told = [part for message in messages for part in message.prompt_logprobs]
    told += [part for message in messages for part in message.logprobs]
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT + tokens])).logits[0].log_softmax(-1)
    assert len(told) == len(PROMPT) + len(tokens) - 1
    for position, part in enumerate(told):
        following = (PROMPT + tokens)[position + 1]
        values, ids = expected[position].topk(3)
        assert part.sampled.token_id == following
        assert part.sampled.logprob == pytest.approx(expected[position, following].item(), abs=1e-4)
        assert [top.token_id for top in part.top] == ids.tolist()
        assert [top.logprob for top in part.top] == pytest.approx(values.tolist(), abs=1e-4)
