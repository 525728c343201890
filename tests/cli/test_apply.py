"""`dormouse apply` and `rollback`: manifests that cannot be, what is kept, what is brought back."""

from __future__ import annotations

import json

import pytest
import yaml

from dormouse_cli.orders import ANNOTATION_PREVIOUS
from dormouse_cli.testing import FakeCluster
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Conflict
from tests.cli import kit


def manifest(name="tiny", **spec):
    whole = {"model": {"uri": "pvc://models/tiny"}, **spec}
    return {
        "apiVersion": "inference.dormouse.dev/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": name},
        "spec": whole,
    }


def stored(fake, name="tiny", namespace="default"):
    return fake.peek(INFERENCE_DEPLOYMENTS, namespace, name)


def apply(dormouse, fake, *manifests, options=()):
    return dormouse(fake, "apply", "-f", "-", *options, stdin=yaml.safe_dump_all(manifests))


def test_a_new_deployment_is_created_in_the_namespace_of_the_command(dormouse):
    fake = kit.cluster()
    result = apply(dormouse, fake, manifest("a"), manifest("b"), options=("-n", "team"))
    assert (result.exit_code, result.stdout) == (0, "team/a created\nteam/b created\n")
    assert stored(fake, "a", "team")["spec"] == {"model": {"uri": "pvc://models/tiny"}}


def test_the_same_manifest_again_changes_nothing(dormouse):
    fake = kit.cluster()
    apply(dormouse, fake, manifest())
    assert apply(dormouse, fake, manifest()).stdout == "default/tiny unchanged\n"
    assert "annotations" not in stored(fake)["metadata"]


def test_a_file_is_read_and_a_missing_one_is_named(dormouse, tmp_path):
    file = tmp_path / "tiny.yaml"
    result = dormouse(kit.cluster(), "apply", "-f", str(file))
    assert (result.exit_code, f"{file} cannot be read" in result.stderr) == (1, True)
    file.write_text(json.dumps(manifest()))
    assert dormouse(kit.cluster(), "apply", "-f", str(file)).exit_code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no document in it"),
        ("a: [", "this is no YAML"),
        ("just words", "document 1 is no Kubernetes object"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: x}", "document 1 is a Pod of v1"),
        (
            "apiVersion: inference.dormouse.dev/v9\nkind: InferenceDeployment\nmetadata: {name: x}",
            "document 1 has apiVersion inference.dormouse.dev/v9; this command line speaks",
        ),
        (
            "apiVersion: inference.dormouse.dev/v1alpha1\nkind: InferenceDeployment\nmetadata: {}",
            "document 1 has no metadata.name",
        ),
    ],
)
def test_what_is_no_manifest_is_named_and_nothing_is_written(dormouse, text, words):
    fake = kit.cluster()
    result = dormouse(fake, "apply", "-f", "-", stdin=text)
    assert result.exit_code == 1
    assert words in result.stderr
    assert fake.mutations() == []


def test_a_namespace_that_is_not_there_is_said_before_the_server_says_it(dormouse):
    fake = kit.cluster()
    result = apply(dormouse, fake, manifest(), options=("-n", "teem"))
    assert (result.exit_code, result.stderr) == (5, "error: there is no namespace teem; did you mean team?\n")


class Quick(FakeCluster):
    """A cluster whose operator has everything serve at once."""

    async def apply(self, kind, obj, *, field_manager, subresource=""):
        after = await super().apply(kind, obj, field_manager=field_manager, subresource=subresource)
        status = kit.deployment()["status"] | {"observedGeneration": after["metadata"]["generation"]}
        self.put(kind, {**after, "status": status})
        return after


def test_apply_waits_until_it_serves_and_tells_condition_by_condition(dormouse):
    result = apply(dormouse, kit.cluster(kind=Quick), manifest(), options=("--wait", "--timeout", "5"))
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "default/tiny created"
    assert [line.split("] ")[1].split(":")[0] for line in lines[1:-1]] == [f"{step} True" for step in kit.STEPS]
    assert lines[-1] == "default/tiny is Active"


def test_of_what_was_there_before_only_changes_are_told(dormouse):
    result = apply(dormouse, kit.cluster(kit.deployment()), manifest(), options=("--wait", "--timeout", "5"))
    assert result.stdout == "default/tiny unchanged\ndefault/tiny is Active\n"


def test_a_rollback_brings_the_former_spec_back_and_a_second_one_undoes_it(dormouse):
    fake = kit.cluster()
    apply(dormouse, fake, manifest(replicas=1, engine={"dtype": "float32", "seed": 1}))
    first = stored(fake)["spec"]
    apply(dormouse, fake, manifest(replicas=2, engine={"seed": 1}))
    second = stored(fake)["spec"]
    result = dormouse(fake, "rollback", "tiny", "--no-wait")
    assert (result.exit_code, result.stdout) == (
        0,
        "default/tiny has its former spec again, which differs in: engine, replicas\n",
    )
    assert stored(fake)["spec"] == first
    dormouse(fake, "rollback", "tiny", "--no-wait")
    assert stored(fake)["spec"] == second


def test_without_a_former_spec_there_is_nothing_to_return_to(dormouse):
    result = dormouse(kit.cluster(kit.deployment()), "rollback", "tiny")
    assert (result.exit_code, "no former spec of tiny is kept" in result.stderr) == (1, True)


def test_a_damaged_former_spec_is_named(dormouse):
    raw = kit.deployment()
    raw["metadata"]["annotations"] = {ANNOTATION_PREVIOUS: "{"}
    result = dormouse(kit.cluster(raw), "rollback", "tiny")
    assert (result.exit_code, f"the annotation {ANNOTATION_PREVIOUS} of tiny is damaged" in result.stderr) == (1, True)


def test_a_spec_too_large_for_an_annotation_is_not_kept(dormouse):
    fake = kit.cluster()
    apply(dormouse, fake, manifest(template={"metadata": {"annotations": {"a": "x" * 65000, "b": "y" * 2000}}}))
    apply(dormouse, fake, manifest())
    assert dormouse(fake, "rollback", "tiny").exit_code == 1


def test_a_rollback_brings_a_null_back_as_a_null(dormouse):
    fake = kit.cluster()
    apply(dormouse, fake, manifest(lifecycle={"level1AfterSeconds": None}))
    first = stored(fake)["spec"] | {"lifecycle": {"level1AfterSeconds": None}}
    fake.edit(INFERENCE_DEPLOYMENTS, "default", "tiny", lambda raw: raw.update(spec=first))
    apply(dormouse, fake, manifest(lifecycle={"level1AfterSeconds": 600}))
    dormouse(fake, "rollback", "tiny", "--no-wait")
    assert stored(fake)["spec"]["lifecycle"] == {"level1AfterSeconds": None}


def test_a_rollback_over_somebody_elses_change_is_refused(dormouse):
    fake = kit.cluster()
    apply(dormouse, fake, manifest(replicas=1))
    apply(dormouse, fake, manifest(replicas=2))
    fake.fail("replace", INFERENCE_DEPLOYMENTS, Conflict("the object has been modified", status=409))
    result = dormouse(fake, "rollback", "tiny", "--no-wait")
    assert (result.exit_code, "has been modified" in result.stderr) == (1, True)
    assert stored(fake)["spec"]["replicas"] == 2
