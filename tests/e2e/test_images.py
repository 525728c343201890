"""Images of a deployment on a real cluster: two questions about one, with and without a sleep between them."""

from __future__ import annotations

import itertools
import re

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from tests.integration.eyes import PICTURES, asked_of_transformers, write_eyes
from tests.worker.front.images.kit import encoded
from tools.kubectl import fill_claim
from tools.release import worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MAX_TOKENS = 12
KINDS = ("queries", "hits")


@pytest.fixture(scope="module")
def expected(cluster, namespace, tmp_path_factory):
    """What transformers says of a picture and a question, of the model that is on the claim, too."""
    path = write_eyes(tmp_path_factory.mktemp("eyes"))
    fill_claim(cluster, namespace=namespace, claim="models", image=worker_image(), folders={"eyes": path})
    return asked_of_transformers(path, MAX_TOKENS)


def num_encoded(deployments, name):
    """Return how many images the encoder of the deployment's only worker was asked for, and ran for."""
    [pod] = deployments.pods(name)
    path = f"/api/v1/namespaces/{deployments.namespace}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
    text = deployments.cluster.kubectl("get", "--raw", path)
    lines = [re.search(rf"^vllm:mm_cache_{kind}_total{{.*}} (\S+)$", text, re.MULTILINE) for kind in KINDS]
    queries, hits = (float(line[1]) for line in lines)
    return queries, queries - hits


def test_a_second_question_about_an_image_encodes_it_again_only_where_a_sleep_dropped_it(
    deployments, model_of, expected, eventually
):
    name = deployments.apply("eyes", model={"uri": "pvc://models/eyes"}, engine={"maxModelLen": 160})
    deployments.wait(name, "condition=Ready", timeout_s=240)
    eventually(lambda: model_of.answers(name, [5], 1))
    questions = (f"Question {number}: what is it?" for number in itertools.count())

    def ask() -> bool:
        """Ask another question, so that no known prefix covers the image; return whether the answer is right."""
        question = next(questions)
        parts = [pb.ContentPart(text=question), pb.ContentPart(image=encoded(PICTURES[0]))]
        sampling = pb.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", parts=parts)])
        messages = model_of(name).generate(pb.GenerateRequest(chat=chat, sampling_params=sampling))
        return [token for each in messages for token in each.token_ids] == expected(PICTURES[0], question=question)[1]

    assert ask()
    assert ask()
    eventually(lambda: num_encoded(deployments, name) == (2, 1))
    for count, level in enumerate((1, 2), 1):
        deployments.sleep(name, level)
        deployments.wake(name)
        assert ask()
        assert ask()
        eventually(lambda asked=2 + 2 * count, ran=1 + count: num_encoded(deployments, name) == (asked, ran))
