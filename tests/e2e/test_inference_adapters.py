"""InferenceAdapters of two namespaces on a real cluster: answers equal peft's own, before and after every sleep."""

from __future__ import annotations

import json

import pytest

from tests.e2e.kit import Deployments
from tests.peft_kit import LOUD, greedy_tokens, make_adapter
from tools.bootstrap import ROOT
from tools.kubectl import fill_claim
from tools.release import fill_model_claim, worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PROMPT, MAX_TOKENS = [42, 7, 7, 300], 12
RANKS = {"sql": 4, "legal": 8, "hr": 2}
ENGINE = {"enableLora": True, "maxLoras": 2, "maxLoraRank": 8, "maxCpuLoras": 3}


@pytest.fixture(scope="module")
def expected(cluster, release, namespace, tiny_model, tmp_path_factory):
    """By adapter: the tokens with which peft answers the prompt, "" is the base. Both namespaces have the files."""
    root = tmp_path_factory.mktemp("adapters")
    made = {name: make_adapter(root / name, tiny_model, rank=rank, loudness=LOUD) for name, rank in RANKS.items()}
    other = release.watch_namespaces[1]
    claim = ROOT / "examples" / "demo" / "models-claim.yaml"
    fill_model_claim(cluster, namespace=other, claim_manifest=claim, model=tiny_model)
    folders = {f"adapters/{name}": path for name, path in made.items()}
    for each in (namespace, other):
        fill_claim(cluster, namespace=each, claim="models", image=worker_image(), folders=folders)
    tokens = {name: greedy_tokens(tiny_model, made.get(name), PROMPT, MAX_TOKENS) for name in ("", *made)}
    assert len({tuple(each) for each in tokens.values()}) == len(tokens), "each adapter is told from the others"
    return tokens


class Offers:
    """The InferenceAdapters of one namespace."""

    def __init__(self, cluster, namespace):
        self.cluster, self.namespace = cluster, namespace

    def apply(self, name, base, /, **spec):
        body = {"base": base, "uri": f"pvc://models/adapters/{name}", **spec}
        kind = {"apiVersion": "inference.dormouse.dev/v1alpha1", "kind": "InferenceAdapter"}
        self.cluster.apply({**kind, "metadata": {"name": name}, "spec": body}, self.namespace)

    def states(self):
        return {each["metadata"]["name"]: each.get("status", {}).get("state") for each in self._all()}

    def reason(self, name):
        (found,) = [each for each in self._all() if each["metadata"]["name"] == name]
        return next(one["reason"] for one in found["status"]["conditions"] if one["type"] == "Resolved")

    def _all(self):
        said = self.cluster.kubectl("get", "infa", "-n", self.namespace, "-o", "json")
        return json.loads(said)["items"]


def test_adapters_of_teams_answer_as_peft_does_and_are_back_after_every_sleep(
    cluster, release, deployments, model_of, expected, eventually
):
    others = Deployments(cluster, release.watch_namespaces[1])
    ours, theirs = Offers(cluster, deployments.namespace), Offers(cluster, others.namespace)
    for made, name in ((deployments, "shared-base"), (others, "their-base")):
        made.apply(name, engine=ENGINE, adapterClaims=["models"])
    ours.apply("sql", "shared-base")
    ours.apply("legal", "shared-base")
    theirs.apply("hr", "their-base")
    theirs.apply("lost", "no-base")
    theirs.apply("twice", "their-base", name="hr")
    both = ((deployments, "shared-base"), (others, "their-base"))

    def all_are(state):
        told = (ours.states(), theirs.states())
        return told == ({"legal": state, "sql": state}, {"hr": state, "lost": "Refused", "twice": "Refused"})

    def check_answers():
        asked = {
            "": "shared-base",
            "sql": "sql",
            "legal": "shared-base:legal",
            "hr": f"{others.namespace}/their-base:hr",
        }
        for adapter, name in asked.items():
            eventually(lambda name=name: model_of.answers(name, PROMPT, 1))
            assert model_of(name).greedy(PROMPT, MAX_TOKENS) == expected[adapter], name

    try:
        for made, name in both:
            made.wait(name, "condition=Ready", timeout_s=300)
        eventually(lambda: all_are("Loaded"))
        assert (theirs.reason("lost"), theirs.reason("twice")) == ("BaseNotFound", "AdapterNameTaken")
        before = [pod["metadata"]["uid"] for made, name in both for pod in made.pods(name)]
        check_answers()
        for level in (1, 2, 3):
            for made, name in both:
                made.patch(name, {"lifecycle": {"desiredState": "Asleep", "sleepLevel": level}})
            eventually(lambda: all_are("Waiting"))
            for made, name in both:
                made.wake(name)
            eventually(lambda: all_are("Loaded"))
            check_answers()
        assert [pod["metadata"]["uid"] for made, name in both for pod in made.pods(name)] == before
        cluster.kubectl("delete", "infa", "hr", "-n", others.namespace)  # who waited for the name has it now
        eventually(lambda: theirs.states() == {"lost": "Refused", "twice": "Failed"})  # its files are not there
    finally:
        cluster.kubectl("delete", "infa", "--all", "-n", others.namespace)
        cluster.kubectl("delete", "infa", "--all", "-n", deployments.namespace)
        others.delete("their-base")
