"""docs/install.md: its commands are run as far as they change nothing, its values are values of the chart."""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dormouse_api.tickets import LEAST_SEED_CHARS
from tests.chart.conftest import KUBE_VERSION, Manifest
from tests.chart.test_values import VALUES
from tools.bootstrap import ROOT
from tools.kubectl import Cluster

pytestmark = pytest.mark.cluster  # helm and kubectl come with it

TEXT = (ROOT / "docs/install.md").read_text("utf-8")
COMMANDS = re.findall(r"^\$ (.*)$", TEXT, re.MULTILINE)
BY_HELM = [command for command in COMMANDS if re.match(r"helm (install|upgrade) ", command)]
ONLY_INSTALLING = {"--create-namespace", "--wait", "--reset-then-reuse-values"}  # helm template knows none of them
[VALUES_FILE] = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
SCRIPT, ROTATION = re.findall(r"^```bash\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("command", BY_HELM)
def test_helm_renders_what_the_document_installs(cluster: Cluster, command: str):
    _, _, release, chart, *rest = shlex.split(command)
    kept = [word for word in rest if word not in ONLY_INSTALLING]
    text = cluster.helm("template", release, str(ROOT / chart), *kept, "--kube-version", KUBE_VERSION)
    assert "kind: Deployment" in text


def test_helm_knows_every_flag_of_the_document(cluster: Cluster):
    seen = [command.split()[1] for command in COMMANDS if command.startswith("helm ")]
    assert {"install", "upgrade", "rollback", "uninstall"} == set(seen)
    for command in (command for command in COMMANDS if command.startswith("helm ")):
        known = cluster.helm(command.split()[1], "--help")
        assert [flag for flag in re.findall(r"--[a-z-]+", command) if f"{flag} " not in known] == []


def test_the_example_of_values_is_one_that_the_chart_takes(render: Callable[..., list[Manifest]], tmp_path: Path):
    (tmp_path / "values.yaml").write_text(VALUES_FILE)
    kinds = {manifest["kind"] for manifest in render(file=tmp_path / "values.yaml")}
    assert {"GRPCRoute", "ServiceMonitor"} <= kinds


def test_every_value_that_the_document_names_is_one():
    names = re.findall(r"`((?:[a-z][A-Za-z]*\.)+[{},A-Za-z]+)(?:=\w+)?`", TEXT)
    named = [name for name in names if name.partition(".")[0] in VALUES and not name.endswith(".yaml")]
    assert len(named) > 20
    for name in named:
        value: object = VALUES
        for part in re.sub(r"\{([a-z]+),.*\}", r"\1", name).split("."):
            assert isinstance(value, dict), name
            assert part in value, name
            value = value[part]


def test_the_script_makes_the_secret_that_the_chart_reads(cluster: Cluster):
    kubectl = shlex.join([*cluster.kubectl_command(), "--kubeconfig", cluster.kubeconfig or "/dev/null"])
    shim = f'kubectl() {{ {kubectl} "$@" --dry-run=client -o json; }}\n'
    secret = json.loads(said_by(shim + SCRIPT))
    assert (secret["metadata"]["name"], secret["metadata"]["namespace"]) == ("dormouse-role-tokens", "dormouse-system")
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    assert data["operator-seed"] != data["gateway-seed"]
    assert all(len(data[f"{role}-seed"]) > LEAST_SEED_CHARS for role in ("operator", "gateway"))
    assert data["operator-seed-previous"] == data["gateway-seed-previous"] == ""


def test_the_script_that_rotates_keeps_the_seeds_of_before(cluster: Cluster):
    kubectl = shlex.join([*cluster.kubectl_command(), "--kubeconfig", cluster.kubeconfig or "/dev/null"])
    shim = f"""kubectl() {{
      case "$1 $*" in
      get*operator-seed*) printf %s {base64.b64encode(b"of the operator").decode()} ;;
      get*gateway-seed*) printf %s {base64.b64encode(b"of the gateways").decode()} ;;
      create*) {kubectl} "$@" ;;
      replace*) cat ;;
      rollout*) echo "# $*" ;;
      esac
    }}
    """
    said = said_by(shim + ROTATION)
    assert "# rollout restart deployment/dormouse-operator deployment/dormouse-gateway" in said
    secret = yaml.safe_load(said)
    data = {key: base64.b64decode(value or "").decode() for key, value in secret["data"].items()}
    assert data["operator-seed-previous"] == "of the operator"
    assert data["gateway-seed-previous"] == "of the gateways"
    assert all(len(data[f"{role}-seed"]) > LEAST_SEED_CHARS for role in ("operator", "gateway"))


def said_by(script: str) -> str:
    return subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout


def test_kubectl_takes_the_kustomize_command(cluster: Cluster):
    [command] = [command for command in COMMANDS if " -k " in command]
    assert command == "kubectl apply --server-side -k deploy/kustomize"
    said = cluster.kubectl("create", "--dry-run=client", "-k", str(ROOT / "deploy" / "kustomize"))
    assert "deployment.apps/dormouse-operator" in said
