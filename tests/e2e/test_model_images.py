"""Models in images on a real kubelet whose runtime, Debian's containerd 1.6, mounts none: what a user is told."""

from __future__ import annotations

import pytest

from tools.release import worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def told(deployments, name):
    condition = deployments.condition(name, "ModelLoaded")
    return condition.get("reason"), condition.get("message", "")


def test_an_image_that_is_not_there_is_told_as_the_model(deployments, eventually):
    name = deployments.apply("lost", model={"uri": "oci://ghcr.io/dormouse/no-such-model:1"})
    eventually(lambda: told(deployments, name)[0] == "ModelPullFailed")
    assert "ghcr.io/dormouse/no-such-model:1" in told(deployments, name)[1]


def test_a_runtime_that_mounts_no_images_is_told_with_what_it_says(deployments, cluster, eventually):
    if not cluster.local:
        pytest.skip("only of localkube's node is it known that it mounts none")
    name = deployments.apply("unmounted", model={"uri": f"oci://{worker_image()}", "path": "opt"})
    eventually(lambda: told(deployments, name)[0] == "ImageNotMounted")
    assert deployments.condition(name, "Scheduled")["status"] == "True", "the API server and the scheduler know it"
