"""Why containers of pods were not made, in the kubelet's words: images, models that are images, the rest. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dormouse_operator.decide.conditions.verdicts import failed
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Container, ModelImage, Pod

_TYPE = "ModelLoaded"
_PULLING = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_NORMAL_WAITS = {"", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"}
_NOT_MADE = {"CreateContainerError", "RunContainerError"}
# An API server that does not know a kind of volume leaves out what it does not know: then it is an emptyDir.
_LEFT_OUT = {"", "emptyDir"}


def complaint(situation: Situation, pods: Sequence[Pod]) -> Condition | None:
    """Tell of the first container that does not start, None where none is held up."""
    image = situation.deployment.model.image
    containers = [(pod, container) for pod in pods for container in (pod.downloader, pod.container)]
    if pulling := next((both for both in containers if both[1].waiting_reason in _PULLING), None):
        pod, container = pulling
        words = f"pod {pod.name}: {_pull_words(container)}"
        is_model = image and _is_told_of(image, container)
        return failed(_TYPE, "ModelPullFailed" if is_model else "ImagePullFailed", words)
    if image and (off := next((pod for pod in pods if pod.model_volume in _LEFT_OUT), None)):
        return failed(_TYPE, "ImageVolumesOff", f"pod {off.name}: the API server left its volume with the model out")
    if stuck := next((both for both in containers if both[1].waiting_reason not in _NORMAL_WAITS), None):
        pod, container = stuck
        words = f"pod {pod.name}: {container.waiting_reason}: {container.waiting_message}"
        # a runtime that knows no image volumes is given a mount without a source
        is_unmounted = image and container.waiting_reason in _NOT_MADE
        return failed(_TYPE, "ImageNotMounted" if is_unmounted else "ContainerNotStarted", words)
    return None


def _is_told_of(image: ModelImage, container: Container) -> bool:
    """Return whether the kubelet speaks of the model; else it is the image of a container, maybe of a longer name."""
    return bool(re.search(rf"(?<![\w.-]){re.escape(image.repository)}(?![\w./-])", container.waiting_message))


def _pull_words(container: Container) -> str:
    """Return what the kubelet says about the image, in a form that does not change while it backs off."""
    return container.waiting_message.rpartition("ErrImagePull: ")[2] or container.waiting_reason
