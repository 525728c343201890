"""`dormouse report`: what is in it, and that no secret is."""

from __future__ import annotations

import json
import stat
import tarfile

import pytest

from dormouse_cli.redact import GONE, Redactor
from dormouse_kube.api import EVENTS, PODS, SECRETS
from dormouse_kube.errors import Forbidden
from tests.cli import kit
from tests.cli.test_doctor import well

CANARY = "c4n4ry-dormouse-5ecret"


def planted():
    """A cluster with the canary wherever a secret may stand."""
    raw = kit.deployment(
        template={
            "spec": {
                "containers": [
                    {
                        "name": "worker",
                        "env": [{"name": "HF_TOKEN", "value": CANARY}, {"name": "X", "value": f"{CANARY}-x"}],
                        "args": [f"--api-key={CANARY}"],
                    }
                ]
            }
        },
        model={"uri": "hf://org/name", "tokenSecretRef": {"name": "hub-token", "key": "token"}},
    )
    copy = json.dumps({"spec": {"env": [{"name": "T", "value": CANARY}]}})
    raw["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": copy,
        "dormouse.dev/previous-spec": copy,
        "proxy": f"https://user:{CANARY}@proxy:3128",
    }
    raw["metadata"]["managedFields"] = [{"fieldsV1": {"f:env": {f'k:{{"name":"{CANARY}"}}': {}}}}]
    raw["status"]["conditions"][0]["message"] = f"the hub said no to Bearer {CANARY}"
    pod = kit.pod(containerStatuses=[{"name": "worker", "restartCount": 1}])
    pod["spec"]["containers"][0]["env"] = [{"name": "PLAIN", "value": f"in-env-{CANARY}"}]
    fake = well(raw, pods=(pod,))
    fake.put(SECRETS, {"metadata": {"name": "hub-token", "namespace": "default"}, "data": {"token": CANARY}})
    fake.put(EVENTS, {"metadata": {"name": "e", "namespace": "default"}, "message": f"password={CANARY}"})
    fake.lines["tiny-fa477b28-0"] = [
        f"2026-11-21T12:00:01Z authorization: Bearer {CANARY}",
        f"2026-11-21T12:00:02Z GET https://user:{CANARY}@hub/model?token={CANARY}&a=1",
        f'2026-11-21T12:00:03Z {{"api_key": "{CANARY}"}}',
        f"2026-11-21T12:00:04Z the worker was started with {CANARY} in its environment",
        "2026-11-21T12:00:05Z -----BEGIN RSA PRIVATE KEY-----",
    ]
    return fake


def files_of(path):
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read().decode() for entry in archive}


def test_a_secret_that_stands_everywhere_is_nowhere_in_the_report(dormouse, tmp_path):
    fake = planted()
    result = dormouse(fake, "report", "-f", str(tmp_path / "r.tar.gz"))
    assert result.exit_code == 0, result.stderr
    files = files_of(tmp_path / "r.tar.gz")
    assert [name for name, text in files.items() if CANARY in text or CANARY in name] == []
    assert CANARY.encode() not in (tmp_path / "r.tar.gz").read_bytes()
    assert not any(call.plural == "secrets" for call in fake.calls), "Secrets are not even read"


def test_what_helps_is_in_it(dormouse, tmp_path):
    dormouse(planted(), "report", "-f", str(tmp_path / "r.tar.gz"))
    files = files_of(tmp_path / "r.tar.gz")
    root = "dormouse-report"
    (raw,) = json.loads(files[f"{root}/default/inferencedeployments.json"])
    assert raw["spec"]["model"]["tokenSecretRef"] == {"name": "hub-token", "key": "token"}, "names are no secrets"
    assert "managedFields" not in raw["metadata"]
    assert raw["spec"]["template"]["spec"]["containers"][0]["env"][0] == {"name": "HF_TOKEN", "value": GONE}
    assert f"the worker was started with {GONE}" in files[f"{root}/default/logs/tiny-fa477b28-0.worker.log"]
    assert f"{root}/default/logs/tiny-fa477b28-0.worker.previous.log" in files
    assert f"{root}/dormouse/deployments.json" in files, "the installation's namespace is in it too"
    assert json.loads(files[f"{root}/about.json"])["server"] == "v1.34.1"
    assert any(finding["about"] == "Kubernetes" for finding in json.loads(files[f"{root}/doctor.json"]))


def test_only_its_owner_can_read_the_file(dormouse, tmp_path):
    dormouse(well(), "report", "-f", str(tmp_path / "r.tar.gz"))
    assert stat.S_IMODE((tmp_path / "r.tar.gz").stat().st_mode) == 0o600


def test_what_can_not_be_read_is_named_in_it(dormouse, tmp_path):
    fake = well()
    words = 'events is forbidden: User "x" cannot list resource "events"'
    fake.fail("list", EVENTS, Forbidden(words, status=403), times=9)
    dormouse(fake, "report", "-f", str(tmp_path / "r.tar.gz"))
    told = json.loads(files_of(tmp_path / "r.tar.gz")["dormouse-report/default/events.json"])
    assert told == {"not read": words}


def test_where_it_can_not_be_written_is_said(dormouse, tmp_path):
    result = dormouse(well(), "report", "-f", str(tmp_path / "no" / "r.tar.gz"))
    assert (result.exit_code, "cannot be written" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {GONE}"),
        ("redis://:pw@host/0", f"redis://:{GONE}@host/0"),
        ("hf_abcdefghijklmnop", f"hf_{GONE}"),
        ("API_KEY=abc next", f"API_KEY={GONE} next"),
        ('"client_secret": "abc", "a": 1', f'"client_secret": "{GONE}", "a": 1'),
        ("prompt_tokens=5 completion_tokens=320", "prompt_tokens=5 completion_tokens=320"),
        ("eos_token_id: 2", "eos_token_id: 2"),
        ("http://host:8080/path", "http://host:8080/path"),
    ],
)
def test_shapes_of_secrets_are_known_and_figures_stay(text, clean):
    assert Redactor().text(text) == clean


def test_short_values_are_not_hunted_elsewhere():
    redactor = Redactor()
    assert redactor.object({"env": [{"name": "DEBUG", "value": "1"}]}) == {"env": [{"name": "DEBUG", "value": GONE}]}
    assert redactor.text("1 of 1") == "1 of 1"


def test_the_redactor_shows_no_secret_of_its_own():
    redactor = Redactor()
    redactor.object({"token": CANARY})
    assert repr(redactor) == "Redactor(1 secrets)"


def test_the_installations_pods_logs_are_read_too(dormouse, tmp_path):
    fake = well()
    labels = {"app.kubernetes.io/part-of": "dormouse", "app.kubernetes.io/component": "operator"}
    pod = {
        "metadata": {"name": "op-1", "namespace": "dormouse", "labels": labels},
        "spec": {"containers": [{"name": "operator"}]},
    }
    fake.put(PODS, pod)
    fake.lines["op-1"] = ["2026-11-21T12:00:01Z hello"]
    dormouse(fake, "report", "-f", str(tmp_path / "r.tar.gz"))
    assert "hello" in files_of(tmp_path / "r.tar.gz")["dormouse-report/dormouse/logs/op-1.operator.log"]
