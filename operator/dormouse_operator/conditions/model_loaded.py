"""ModelLoaded: every worker runs and has read its weights. Pure."""

from __future__ import annotations

from dormouse_operator.conditions.ladder import failed, first_failed, holds, no_replicas, not_yet, unknown
from dormouse_operator.model import Condition, Observed, Pod, WorkerState

TYPE = "ModelLoaded"
_PULLING = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_NORMAL_WAITS = {"", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"}
_UNLOADED = {None, WorkerState.STARTING, WorkerState.LOADING}


def evaluate(observed: Observed) -> Condition:
    """See the module."""
    there = observed.replicas
    if off := no_replicas(TYPE, observed):
        return off
    if not there:
        return unknown(TYPE, "WaitingForPods", "no pod exists yet")
    if pulling := next((pod for pod in there if pod.container.waiting_reason in _PULLING), None):
        return failed(TYPE, "ImagePullFailed", f"pod {pulling.name}: {_pull_words(pulling)}")
    if stuck := next((pod for pod in there if pod.container.waiting_reason not in _NORMAL_WAITS), None):
        words = f"pod {stuck.name}: {stuck.container.waiting_reason}: {stuck.container.waiting_message}"
        return failed(TYPE, "ContainerNotStarted", words)
    if ended := next((pod for pod in there if _has_ended(pod)), None):
        words = f"pod {ended.name}: {_last_end(ended)}"
        # a worker that was asked to end does so with 0, and the kubelet starts it again
        return (
            failed(TYPE, "WorkerCrashed", words) if ended.container.exit_code else not_yet(TYPE, "WorkerEnded", words)
        )
    if found := first_failed(observed, "loading"):
        pod, failure = found
        return failed(TYPE, failure.reason, f"pod {pod.name}: {failure.message}")
    if behind := next((pod for pod in there if observed.state(pod) in _UNLOADED), None):
        return _progress(observed, behind)
    return holds(TYPE, "Loaded", f"{len(there)} of {len(there)} workers have loaded the model")


def _progress(observed: Observed, behind: Pod) -> Condition:
    """Tell how far the workers are, and of one of those behind what it does."""
    loaded = [pod for pod in observed.replicas if observed.state(pod) not in _UNLOADED]
    state = observed.state(behind)
    words = f"{len(loaded)} of {len(observed.replicas)} workers have loaded the model; pod {behind.name} "
    end = f" (after {_last_end(behind)})" if behind.container.exit_code is not None else ""
    if state is None:
        why = observed.unreachable.get(behind.name, "")
        return not_yet(TYPE, "WorkerStarting", f"{words}starts{': ' + why if why else ''}{end}")
    return not_yet(TYPE, "Loading", f"{words}is loading{end}")


def _has_ended(pod: Pod) -> bool:
    return pod.container.exit_code is not None and not pod.container.is_running


def _last_end(pod: Pod) -> str:
    """Return how the container ended: code, reason, how often, last words."""
    container = pod.container
    reason = f" ({container.exit_reason})" if container.exit_reason not in {"", "Error", "Completed"} else ""
    lines = container.exit_message.splitlines()
    words = f": {lines[-1][:300]}" if lines else ""
    return f"exit code {container.exit_code}{reason}, restarted {container.restart_count} times{words}"


def _pull_words(pod: Pod) -> str:
    """Return what the kubelet says about the image, in a form that does not change while it backs off."""
    message = pod.container.waiting_message
    return message.rpartition("ErrImagePull: ")[2] or pod.container.waiting_reason
