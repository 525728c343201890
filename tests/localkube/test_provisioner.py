"""One volume per claim that is due, none twice, and nothing of others is touched."""

import pytest

from localkube import provisioner, spec
from localkube.errors import ApiError
from localkube.provisioner import CLAIMS, DUE, MADE_BY, VOLUMES, Plan, Provisioner, plan


def claim(uid="u1", **changes):
    value = {
        "metadata": {"namespace": "ns", "name": "data", "uid": uid, "annotations": {DUE: spec.PROVISIONER}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": spec.STORAGE_CLASS,
        },
    }
    value["metadata"] |= changes.pop("metadata", {})
    value["spec"] |= changes
    return value


def volume(name="pvc-u1", phase="Released", policy="Delete", **metadata):
    made_by = {MADE_BY: spec.PROVISIONER}
    return {
        "metadata": {"name": name, "annotations": made_by, **metadata},
        "spec": {"persistentVolumeReclaimPolicy": policy},
        "status": {"phase": phase},
    }


class FakeApi:
    """Claims and volumes in memory; `failures` are raised once by the next writes."""

    def __init__(self, claims=(), volumes=()):
        self.items = {CLAIMS: list(claims), VOLUMES: list(volumes)}
        self.failures = []

    def get(self, path):
        return {"items": list(self.items[path])}

    def create(self, path, value):
        self._fail()
        self.items[path].append(value)

    def delete(self, path):
        self._fail()
        collection, _, name = path.rpartition("/")
        self.items[collection] = [item for item in self.items[collection] if item["metadata"]["name"] != name]

    def watch(self, _path, *, timeout_s):
        raise ApiError(f"no watch for {timeout_s} s")

    def _fail(self):
        if self.failures:
            raise self.failures.pop(0)


def test_a_due_claim_gets_one_volume_bound_to_it_alone(tmp_path):
    (made,) = plan([claim()], [], tmp_path).create
    assert made["metadata"]["name"] == "pvc-u1"
    assert made["spec"]["claimRef"]["uid"] == "u1"
    assert made["spec"]["capacity"] == {"storage": "1Gi"}
    assert made["spec"]["hostPath"]["path"] == str(tmp_path / "pvc-u1")


@pytest.mark.parametrize(
    "other",
    [
        claim(metadata={"annotations": {}}),
        claim(metadata={"annotations": {DUE: "somebody.else/provisioner"}}),
        claim(metadata={"deletionTimestamp": "now"}),
        claim(volumeName="pvc-u1"),
        claim(volumeMode="Block"),
    ],
)
def test_a_claim_that_is_not_due_or_not_ours_gets_none(other, tmp_path):
    assert plan([other], [], tmp_path) == Plan()


def test_a_claim_whose_volume_exists_gets_no_second_one(tmp_path):
    assert plan([claim()], [volume(phase="Available")], tmp_path) == Plan()


def test_a_released_volume_of_ours_is_removed(tmp_path):
    assert plan([], [volume()], tmp_path) == Plan(delete=("pvc-u1",))


@pytest.mark.parametrize(
    "kept",
    [
        volume(phase="Bound"),
        volume(policy="Retain"),
        volume(annotations={}),
        volume(annotations={MADE_BY: "somebody.else"}),
        volume(deletionTimestamp="now"),
    ],
)
def test_volumes_in_use_kept_by_wish_or_of_others_stay(kept, tmp_path):
    assert plan([], [kept], tmp_path) == Plan()


def test_the_folder_is_writable_by_any_user_and_goes_with_its_volume(tmp_path):
    api = FakeApi([claim()])
    served = Provisioner(api, tmp_path, [].append)
    served.reconcile()
    assert (tmp_path / "pvc-u1").stat().st_mode & 0o777 == 0o777
    (tmp_path / "pvc-u1" / "file").write_text("x")
    api.items = {CLAIMS: [], VOLUMES: [volume()]}
    served.reconcile()
    assert not (tmp_path / "pvc-u1").exists()
    assert api.items[VOLUMES] == []


def test_looking_again_changes_nothing(tmp_path):
    api = FakeApi([claim()])
    served = Provisioner(api, tmp_path, [].append)
    served.reconcile()
    served.reconcile()
    assert len(api.items[VOLUMES]) == 1


def test_a_failure_with_one_volume_leaves_the_others_alone_and_is_mended_at_the_next_look(tmp_path):
    api, log = FakeApi([claim("u1"), claim("u2")]), []
    api.failures = [ApiError("no", status=500)]
    served = Provisioner(api, tmp_path, log.append)
    served.reconcile()
    assert [item["metadata"]["name"] for item in api.items[VOLUMES]] == ["pvc-u2"]
    assert "will be tried again: no" in log
    served.reconcile()
    assert len(api.items[VOLUMES]) == 2


@pytest.mark.parametrize("status", [404, 409])
def test_what_was_done_already_is_no_failure(tmp_path, status):
    api, log = FakeApi([claim()]), []
    api.failures = [ApiError("done already", status=status)]
    Provisioner(api, tmp_path, log.append).reconcile()
    assert log == []


def test_the_provisioner_tells_where_it_works(tmp_path):
    assert repr(Provisioner(FakeApi(), tmp_path, [].append)) == f"Provisioner({tmp_path})"
    assert provisioner.WATCH_S > 0
