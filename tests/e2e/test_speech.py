"""A model that reads sound on a real cluster: heard over HTTP, asleep by order and by itself, awake by a file."""

from __future__ import annotations

import pytest
from openai import OpenAI

from dormouse_worker.model.testing_speech import write_whisper
from tests.integration.test_speech import as_file, noise
from tools.kubectl import fill_claim
from tools.release import worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

SOON = {"desiredState": "Auto", "level1AfterSeconds": 1, "level2AfterSeconds": 2, "minActiveSeconds": 0}
NEVER = {"level1AfterSeconds": None, "level2AfterSeconds": None, "minActiveSeconds": 60}


def test_a_file_is_heard_as_before_after_a_sleep_by_order_and_wakes_a_model_that_slept_by_itself(
    cluster, release, namespace, deployments, tmp_path
):
    folders = {"whisper": write_whisper(tmp_path)}
    fill_claim(cluster, namespace=namespace, claim="models", image=worker_image(), folders=folders)
    name = deployments.apply(
        "bat",
        model={"uri": "pvc://models/whisper"},
        engine={"maxModelLen": 64, "maxNumSeqs": 2},
        lifecycle={"desiredState": "Active"},
    )
    deployments.wait(name, "condition=Ready", timeout_s=240)
    with cluster.port_forward(release.gateway, 8000, release.namespace) as port:
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=3, timeout=180)

        def hear():
            """Return the tokens of each segment."""
            told = client.audio.transcriptions.create(
                model=name,
                file=("noise.wav", as_file(noise(3))),
                language="en",
                temperature=0.5,
                response_format="verbose_json",
                extra_body={"seed": 3},
            )
            return [segment.tokens for segment in told.segments]

        before = hear()
        assert before
        deployments.sleep(name, 1)
        deployments.wake(name)
        assert hear() == before
        deployments.patch(name, {"lifecycle": SOON})
        deployments.wait(name, "jsonpath={.status.lifecycle.rung}=Level2")
        deployments.wait(name, "condition=Asleep")
        deployments.patch(name, {"lifecycle": NEVER})
        assert hear() == before, "one call: it was held, and heard"
    deployments.wait(name, "jsonpath={.status.phase}=Active")
    actuation = deployments.status(name)["lastActuation"]
    assert (actuation["path"], actuation["reason"]) == ("level2", "request")
