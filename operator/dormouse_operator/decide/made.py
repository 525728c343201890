"""Which of a deployment's pods operators made: those that the status records, and new ones with a seal. Pure.

An owner reference can be written by whoever may create pods and reads the deployment's UID; the status and seals by the
operator only. A pod that says it is ours and is neither recorded nor sealed is nobody's: another owner stands in its
place here, so that it is asked nothing, told to no gateway, and deleted. What the API server answered to our own
`create` is ours whatever its seal says: a clock may be wrong, and a webhook may drop annotations. Under a status that
does not record pods yet, as operators of before wrote it, owner references count, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from dormouse_operator.decide.seals import Seals
from dormouse_operator.model import UNMADE, Deployment, Pod


def sort_out(
    deployment: Deployment, pods: Iterable[Pod], seals: Seals | None, *, made: Collection[str] = ()
) -> tuple[Pod, ...]:
    """Return the pods; those that only say they are the deployment's have no owner. Without seals all are believed.

    `made` are the UIDs of those that this very process created.
    """
    recorded = deployment.recorded.pods
    if recorded is None or seals is None:
        return tuple(pods)
    known = recorded.union(made)
    return tuple(pod if _is_believed(deployment, pod, known, seals) else replace(pod, owner_uid=UNMADE) for pod in pods)


def _is_believed(deployment: Deployment, pod: Pod, known: Collection[str], seals: Seals) -> bool:
    if pod.owner_uid != deployment.uid or pod.uid in known:  # another owner's name is believed: it gets nothing here
        return True
    return seals.fits(pod.seal, deployment.uid, pod.name, pod.created)
