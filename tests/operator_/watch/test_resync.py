"""What nobody saw yet is found, and nothing else."""

from __future__ import annotations

from dormouse_api.names import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_operator.model import Key
from dormouse_operator.watch.cache import Cache
from dormouse_operator.watch.resync import find_unseen


async def test_the_resync_finds_what_is_new_changed_or_gone_and_nothing_else(rig):
    await rig.serving()
    await rig.reconcile()
    seen = rig.reconciler.seen
    rig.kube.calls.clear()
    assert find_unseen(rig.cache, [seen]) == []
    new = {"metadata": {"namespace": "team", "name": "new"}, "spec": {"model": {"uri": "file:///x"}}}
    rig.kube.put(INFERENCE_DEPLOYMENTS, new)
    rig.pump.pump()
    assert find_unseen(rig.cache, [seen]) == [Key("team", "new")]
    rig.kube.edit(PODS, "team", rig.pods[0], lambda pod: pod["status"].update(message="x"))
    rig.pump.pump()
    assert set(find_unseen(rig.cache, [seen])) == {Key("team", "new"), rig.key}
    assert find_unseen(Cache(), [seen]) == [rig.key]
    assert rig.kube.calls == []


async def test_pods_that_outlive_their_object_are_not_a_reason_to_look(rig):
    labels = {LABEL_DEPLOYMENT: "gone", LABEL_COMPONENT: COMPONENT_WORKER}
    rig.kube.put(PODS, {"metadata": {"namespace": "team", "name": "p", "labels": labels}, "spec": {}})
    rig.pump.pump()
    assert find_unseen(rig.cache, []) == []


async def test_a_canary_is_a_reason_to_look_when_whose_requests_it_shares_comes_or_goes(rig):
    """Its status says whether that one is there, and nothing of its own changes."""
    canary, standing = Key("team", "canary"), Key("team", "standing")
    spec = {"model": {"uri": "file:///x"}}
    for key, more in ((canary, {"canary": {"of": "standing", "weight": 10}}), (Key("team", "other"), {})):
        rig.kube.put(INFERENCE_DEPLOYMENTS, {"metadata": key._asdict(), "spec": {**spec, **more}})
    rig.pump.pump()

    def unseen():
        """Return what is to be looked at since this was asked last."""
        found, seen[0] = set(find_unseen(rig.cache, seen)), dict(rig.cache.versions())
        return found

    seen = [dict(rig.cache.versions())]
    rig.kube.put(INFERENCE_DEPLOYMENTS, {"metadata": standing._asdict(), "spec": spec})
    rig.pump.pump()
    assert unseen() == {canary, standing}
    rig.kube.edit(INFERENCE_DEPLOYMENTS, *standing, lambda obj: obj.update(status={"phase": "Active"}))
    rig.pump.pump()
    assert unseen() == {standing}, "that it changes is nothing to its canary"
    rig.kube.finish_deletion(INFERENCE_DEPLOYMENTS, *standing)
    rig.pump.pump()
    assert unseen() == {canary, standing}
    rig.kube.edit(INFERENCE_DEPLOYMENTS, *canary, lambda obj: obj["spec"].pop("canary"))
    rig.kube.put(INFERENCE_DEPLOYMENTS, {"metadata": standing._asdict(), "spec": spec})
    rig.pump.pump()
    assert unseen() == {canary, standing}
    rig.kube.finish_deletion(INFERENCE_DEPLOYMENTS, *standing)
    rig.pump.pump()
    assert unseen() == {standing}, "it is no canary any more"
