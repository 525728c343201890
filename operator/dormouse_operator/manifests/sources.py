"""How a worker's pod mounts its model: a claim, the cache of a hub's models, or an image. Pure."""

from __future__ import annotations

from dormouse_operator.manifests.common import Manifest
from dormouse_operator.manifests.download import cache_mount, cache_volume
from dormouse_operator.model import ModelImage, ModelSource
from dormouse_operator.parse import IMAGE_ROOT, MODEL_VOLUME, MODELS_ROOT


def source_volumes(model: ModelSource) -> list[Manifest]:
    """Return the volume that holds the model; none where it is in the worker's own container."""
    if model.claim:
        return [{"name": MODEL_VOLUME, "persistentVolumeClaim": {"claimName": model.claim, "readOnly": True}}]
    if model.image:
        return [_image_volume(model.image)]
    return [cache_volume(model.hub)] if model.hub else []


def source_mounts(model: ModelSource) -> list[Manifest]:
    """Return where it is mounted in the worker's container. No worker writes there."""
    if model.claim:
        return [{"name": MODEL_VOLUME, "mountPath": f"{MODELS_ROOT}/{model.claim}", "readOnly": True}]
    if model.image:
        return [{"name": MODEL_VOLUME, "mountPath": IMAGE_ROOT, "readOnly": True}]
    return [cache_mount(is_read_only=True)] if model.hub else []


def _image_volume(image: ModelImage) -> Manifest:
    """Return the image, whole: a part of it could only be mounted by newer runtimes."""
    policy = {"pullPolicy": image.pull_policy} if image.pull_policy else {}
    return {"name": MODEL_VOLUME, "image": {"reference": image.reference, **policy}}
