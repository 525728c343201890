"""What the documents tell to type of helm and kubectl: their own help knows it, and the chart renders with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import pytest

from tests.chart.conftest import KUBE_VERSION
from tests.tools.documents import Command, commands
from tools.bootstrap import ROOT
from tools.kubectl import Cluster

pytestmark = pytest.mark.cluster  # helm and kubectl come with it

KUBECTL = [command for command in commands() if command.program == "kubectl"]
HELM = [command for command in commands() if command.program == "helm"]
ONLY_INSTALLING = {"--create-namespace", "--install", "--wait", "--reset-then-reuse-values", "--reuse-values"}
OTHERS = {"istio/istiod"}  # other people's charts, which are not at hand
GLOBAL = {"-n", "--namespace", "-A", "--kubeconfig", "--context"}


def flags(words: list[str]) -> set[str]:
    """Return the flags of a command, without their values; what follows `--` is another program's."""
    own = words[: words.index("--")] if "--" in words else words
    return {word.partition("=")[0] for word in own if re.match(r"--?[a-zA-Z]", word)}


@pytest.fixture(scope="module")
def kubectl_help(cluster: Cluster) -> Callable[[str], str]:
    """What kubectl says of a verb, asked once for each."""
    return lru_cache(lambda verb: cluster.kubectl(*verb.split(), "--help"))


def verb_of(words: list[str]) -> str:
    """Return the verb, with the words behind it that choose another help."""
    own = list(words)
    while own[0].startswith("-"):  # a namespace before the verb
        del own[:2]
    plain = [word for word in own if not word.startswith("-")]
    return " ".join(plain[: {"rollout": 2, "config": 2, "create": 3 if "secret" in plain else 2}.get(plain[0], 1)])


@pytest.mark.parametrize("command", KUBECTL, ids=str)
def test_kubectl_knows_the_verb_and_every_flag(kubectl_help: Callable[[str], str], command: Command):
    text = kubectl_help(verb_of(command.words))
    unknown = [flag for flag in flags(command.words) - GLOBAL if not re.search(rf"(?:^|[\s,]){flag}\b", text)]
    assert unknown == []


@pytest.mark.parametrize("command", HELM, ids=str)
def test_helm_knows_every_flag_and_the_chart_renders_with_them(cluster: Cluster, command: Command):
    verb, *rest = command.words
    known = cluster.helm(verb, "--help")
    assert [flag for flag in flags(rest) if not re.search(rf"{flag}\b", known)] == []
    if verb in {"install", "upgrade"} and command.is_whole and not OTHERS & {*rest}:
        release, chart, *settings = [word for word in rest if word not in ONLY_INSTALLING]
        kept = [str(ROOT / word) if word.startswith("examples/") else word for word in settings]
        text = cluster.helm("template", release, str(ROOT / chart), *kept, "--kube-version", KUBE_VERSION)
        assert "kind: Deployment" in text
