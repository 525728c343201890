"""ModelLoaded: every worker runs and has read its weights. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions import not_started
from dormouse_operator.decide.conditions.verdicts import failed, first_failed, holds, not_yet, nothing_engaged, unknown
from dormouse_operator.decide.crashes import end_of
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Container, Pod, WorkerState
from dormouse_operator.model.units import in_gib
from dormouse_operator.parse import format_time

TYPE = "ModelLoaded"
DOWNLOADING = "DownloadingModel"
_UNLOADED = {None, WorkerState.STARTING, WorkerState.LOADING}


def evaluate(situation: Situation) -> Condition:
    """See the module."""
    there = situation.engaged
    if off := nothing_engaged(TYPE, situation):
        return off
    if not there:
        return unknown(TYPE, "WaitingForPods", "no pod exists yet")
    everybody = [pod for leader in there for pod in situation.group(leader).members]
    if complaint := not_started.complaint(situation, everybody):
        return complaint
    telling_first = sorted(everybody, key=lambda pod: _waits_its_turn(situation, pod))
    if downloading := next((told for pod in telling_first if (told := _download(situation, pod))), None):
        return downloading
    if ended := next((pod for pod in there if _has_ended(pod)), None):
        words = f"pod {ended.name}: {end_of(ended.container)}"
        # a worker that was asked to end does so with 0, and the kubelet starts it again
        return (
            failed(TYPE, "WorkerCrashed", words) if ended.container.exit_code else not_yet(TYPE, "WorkerEnded", words)
        )
    if looping := next((words for pod in there if (words := _looping(situation, pod))), ""):
        return failed(TYPE, "WorkerCrashed", looping)
    if found := first_failed(situation, "loading"):
        pod, failure = found
        return failed(TYPE, failure.reason, f"pod {pod.name}: {failure.message}")
    if behind := next((pod for pod in there if situation.state(pod) in _UNLOADED), None):
        return _progress(situation, behind)
    return holds(TYPE, "Loaded", f"{len(there)} of {len(there)} workers have loaded the model")


def _looping(situation: Situation, leader: Pod) -> str:
    """Return of which follower the kubelet starts the container again and again, and its ranks; "" of none."""
    group = situation.group(leader)
    pod = group.looping
    return f"pod {pod.name} ({group.ranks_of(pod)}): {end_of(pod.container)}" if pod else ""


def _download(situation: Situation, pod: Pod) -> Condition | None:
    """Tell of the init container that fetches the model while it runs or has failed; None once it is done."""
    downloader, hub = pod.downloader, situation.deployment.model.hub
    if hub is None or not (downloader.is_running or downloader.exit_code):
        return None
    source = f"hf://{hub.repo} at revision {hub.revision}"
    if downloader.is_running:
        words = f"pod {pod.name} downloads {source}{_so_far(situation, pod)}{_after(downloader)}"
        return not_yet(TYPE, DOWNLOADING, words)
    return failed(TYPE, "ModelDownloadFailed", f"pod {pod.name}: {end_of(downloader)}")


def _waits_its_turn(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod's download does not tell how far it is: of pods that share a volume one fetches."""
    return pod.downloader.is_running and pod.name not in situation.observed.downloads


def _so_far(situation: Situation, pod: Pod) -> str:
    """Return how much is there, "" where that is not told."""
    download = situation.observed.downloads.get(pod.name)
    return f": {in_gib(download.done_bytes)} of {in_gib(download.total_bytes)}" if download else ""


def _after(container: Container) -> str:
    return f" (after {end_of(container)})" if container.exit_code is not None else ""


def _progress(situation: Situation, behind: Pod) -> Condition:
    """Tell how far the workers are, and of one of those behind what it does."""
    loaded = [pod for pod in situation.engaged if situation.state(pod) not in _UNLOADED]
    state = situation.state(behind)
    words = f"{len(loaded)} of {len(situation.engaged)} workers have loaded the model; pod {behind.name} "
    end = _cause(situation, behind)
    if state is None and behind.gate_open:  # it has served
        since = f" since {format_time(behind.ready_since)}" if behind.ready_since and not behind.is_ready else ""
        words += f"gives no answer{since}: {situation.unreachable.get(behind.name, 'it was not asked yet')}"
        return not_yet(TYPE, "WorkerSilent", words)
    if state is None:
        why = situation.unreachable.get(behind.name, "")
        return not_yet(TYPE, "WorkerStarting", f"{words}starts{': ' + why if why else ''}{end}")
    return not_yet(TYPE, "Loading", f"{words}is loading{end}")


def _cause(situation: Situation, pod: Pod) -> str:
    """Return what ended before a worker began anew, with its time; "" where that explains nothing.

    An engine that died explains what the next one does. The container's end explains the first engine of its next run,
    until the pod has been let serve: what comes after that has another cause.
    """
    worker = situation.worker(pod)
    if worker and worker.last_engine_failure:
        when = f"at {format_time(worker.engine_failed)}: " if worker.engine_failed else ""
        return f" ({when}{worker.last_engine_failure.message})"
    return "" if pod.gate_open else _after(pod.container)


def _has_ended(pod: Pod) -> bool:
    return pod.container.exit_code is not None and not pod.container.is_running
