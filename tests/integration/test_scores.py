"""A real worker that scores behind the door of `dormouse serve`: transformers' numbers, also after a sleep."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch
from tokenizers import Tokenizer

from dormouse_worker.model.testing_pooling import reference_logits, write_tiny_classifier
from tests.integration.test_embeddings import ASLEEP, FLAGS, WAIT_S, agree, open_door
from tests.integration.test_sleep import sleep, wake

QUERY, DOCUMENTS = "hazel", ["a nut", "winter " * 5, "a nest of hazel"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A cross-encoder's directory, with random weights."""
    return write_tiny_classifier(tmp_path_factory.mktemp("random"), labels=("fits",))


@pytest.fixture(scope="module")
def scorer(start_worker, model):
    """Its worker."""
    worker = start_worker(model, *FLAGS)
    assert worker.report().num_gpu_blocks == 0
    agree(worker)
    return worker


def reference(model):
    """Return what the tokenizer's library and transformers make of the pairs."""
    pairs = [Tokenizer.from_file(str(model / "tokenizer.json")).encode(QUERY, document) for document in DOCUMENTS]
    starts = [pair.type_ids.index(1) if 1 in pair.type_ids else 0 for pair in pairs]
    logits = [reference_logits(model, pair.ids, start) for pair, start in zip(pairs, starts, strict=True)]
    return [float(torch.sigmoid(one)[0]) for one in logits]


def test_a_call_that_comes_during_a_sleep_waits_and_gets_the_scores_of_before(scorer, model):
    with (
        open_door(scorer) as address,
        openai.OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0, timeout=WAIT_S) as client,
    ):

        def scores():
            body = {"model": "tiny", "query": QUERY, "documents": DOCUMENTS}
            told = client.post("/rerank", cast_to=object, body=body)
            return {one["index"]: one["relevance_score"] for one in told["results"]}

        before = scores()
        assert [before[place] for place in range(3)] == pytest.approx(reference(model), abs=1e-5)
        assert sleep(scorer, 2).state == ASLEEP
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(scores)
            wake(scorer)
            assert held.result(WAIT_S) == before
