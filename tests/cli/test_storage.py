"""`dormouse migrate-storage`: what is written anew, what is taken off the list, who else may write meanwhile."""

from __future__ import annotations

import pytest

from dormouse_cli.storage import DEFINITIONS
from dormouse_cli.testing import FakeCluster
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Conflict, NotFound
from tests.cli import kit

NAME = "inferencedeployments.inference.dormouse.dev"


def definition(stored="v1beta1", once=("v1alpha1", "v1beta1")):
    versions = [{"name": name, "storage": name == stored} for name in ("v1alpha1", "v1beta1")]
    return {"metadata": {"name": NAME}, "spec": {"versions": versions}, "status": {"storedVersions": list(once)}}


def cluster(kind=FakeCluster, **said):
    fake = kit.cluster(kit.deployment("a"), kit.deployment("b", "team"), kind=kind)
    fake.put(DEFINITIONS, definition(**said))
    return fake


def listed(fake):
    return fake.peek(DEFINITIONS, "", NAME)["status"]["storedVersions"]


def test_objects_of_all_namespaces_are_written_as_they_are_before_the_version_is_taken_off(dormouse):
    fake = cluster()
    before = [fake.peek(INFERENCE_DEPLOYMENTS, *key) for key in (("default", "a"), ("team", "b"))]
    result = dormouse(fake, "migrate-storage")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "inferencedeployments: 2 are stored as v1beta1 now"
    assert result.stdout.splitlines()[1:] == [
        "inferenceadapters: not defined here",
        "inferencekeys: not defined here",
        "gpupools: not defined here",
    ]
    assert listed(fake) == ["v1beta1"]
    assert [fake.peek(INFERENCE_DEPLOYMENTS, *key) for key in (("default", "a"), ("team", "b"))] == before
    assert [call.verb for call in fake.mutations()] == ["replace", "replace", "patch_status"]


def test_where_all_are_stored_in_the_version_nothing_is_written(dormouse):
    fake = cluster(once=("v1beta1",))
    result = dormouse(fake, "migrate-storage")
    assert "inferencedeployments: all are stored as v1beta1" in result.stdout
    assert fake.mutations() == []


@pytest.mark.parametrize("error", [Conflict("written since"), NotFound("gone")])
def test_an_object_that_somebody_else_wrote_or_deleted_meanwhile_needs_nothing(dormouse, error):
    class Busy(FakeCluster):
        async def replace(self, *_):
            raise error

    fake = cluster(Busy)
    assert dormouse(fake, "migrate-storage").exit_code == 0
    assert listed(fake) == ["v1beta1"]


def test_a_definition_that_changes_meanwhile_keeps_its_list(dormouse):
    class Changed(FakeCluster):
        async def replace(self, kind, obj):
            self.put(DEFINITIONS, definition(stored="v1alpha1"))
            return await super().replace(kind, obj)

    fake = cluster(Changed)
    result = dormouse(fake, "migrate-storage")
    assert (result.exit_code, result.stderr) == (1, f"error: {NAME} was changed meanwhile; run this again\n")
    assert listed(fake) == ["v1alpha1", "v1beta1"]
