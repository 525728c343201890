"""Adapters of a deployment on a real cluster: answers equal the merged models', before and after a sleep."""

from __future__ import annotations

import shutil

import pytest

from dormouse_worker.model.testing_adapters import merge_adapter, write_adapter
from tools import reference
from tools.kubectl import fill_claim
from tools.release import worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PROMPT, MAX_TOKENS = [5, 17, 42, 9, 3], 12
SEEDS = {"sql": 1, "legal": 2, "sql-v2": 3}


@pytest.fixture(scope="module")
def adapters(cluster, namespace, tiny_model, tmp_path_factory):
    """By folder of the claim `models`: the tokens with which an adapter answers the prompt, "" is the base."""
    root, answers = tmp_path_factory.mktemp("adapters"), {"": reference.greedy_tokens(tiny_model, PROMPT, MAX_TOKENS)}
    for name, seed in SEEDS.items():
        written = write_adapter(root / name, tiny_model, seed=seed)
        shutil.copytree(tiny_model, root / f"{name}-merged")
        merged = merge_adapter(root / f"{name}-merged", tiny_model, written, scale=2.0)  # alpha 8 of rank 4
        answers[name] = reference.greedy_tokens(merged, PROMPT, MAX_TOKENS)
    folders = {f"adapters/{name}": root / name for name in SEEDS}
    fill_claim(cluster, namespace=namespace, claim="models", image=worker_image(), folders=folders)
    return answers


def an_adapter(name: str, folder: str = "") -> dict[str, str]:
    return {"name": name, "uri": f"pvc://models/adapters/{folder or name}"}


def test_adapters_answer_as_merged_models_do_and_are_back_after_a_sleep(deployments, model_of, adapters, eventually):
    engine = {"enableLora": True, "maxLoras": 2, "maxLoraRank": 8, "maxCpuLoras": 4}
    broken = an_adapter("absent", "no-such-folder")
    name = deployments.apply("adapted", engine=engine, adapters=[an_adapter("sql"), an_adapter("legal"), broken])

    def states() -> dict[str, str]:
        return {each["name"]: each["state"] for each in deployments.status(name).get("adapters", ())}

    def answers(*names: str) -> list[list[int]]:
        return [model_of(each).greedy(PROMPT, MAX_TOKENS) for each in names]

    deployments.wait(name, "condition=Ready", timeout_s=240)
    eventually(lambda: states() == {"sql": "Loaded", "legal": "Loaded", "absent": "Failed"})
    eventually(lambda: model_of.answers("sql", PROMPT, 1))
    expected = [adapters[""], adapters["sql"], adapters["legal"]]
    assert answers(name, "sql", "adapted:legal") == expected
    assert "no such directory" in model_of.refusal("absent")
    for level in (1, 2):
        deployments.sleep(name, level)
        deployments.wake(name)
        eventually(lambda: states()["sql"] == "Loaded")
        assert answers(name, "sql", "legal") == expected
    before = [pod["metadata"]["uid"] for pod in deployments.pods(name)]
    deployments.patch(name, {"adapters": [an_adapter("sql", "sql-v2"), an_adapter("legal")]})
    eventually(lambda: deployments.status(name)["adapters"][1]["uri"].endswith("v2") and states()["sql"] == "Loaded")
    assert answers(name, "sql", "legal") == [adapters[""], adapters["sql-v2"], adapters["legal"]]
    assert [pod["metadata"]["uid"] for pod in deployments.pods(name)] == before
