"""spec.model and spec.cache → where the model comes from. Pure. Raises only SpecError."""

from __future__ import annotations

import re
from typing import Final

from dormouse_operator.model import Hub, ModelImage, ModelSource, PrePull, SecretKey
from dormouse_operator.parse.values import Raw, SpecError, parse_bytes

MODELS_ROOT: Final = "/models"  # claims are mounted below it
CACHE_ROOT: Final = f"{MODELS_ROOT}/cache"  # what hubs served; a directory for each repository and revision
IMAGE_ROOT: Final = f"{MODELS_ROOT}/image"  # the image that holds the model
_ALLOWED = (
    "hf://ORG/NAME, hf://ORG/NAME:GGUF, oci://REGISTRY/NAME:TAG, oci://REGISTRY/NAME@sha256:DIGEST,"
    " pvc://CLAIM/PATH and file:///PATH"
)
_IMAGE: Final = re.compile(  # as the schema has it
    r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
    r"(:[A-Za-z0-9_][-A-Za-z0-9._]{0,127}(@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})"
)
_OF_HUBS, _OF_IMAGES = ("revision", "tokenSecretRef"), ("path", "pullPolicy")


def parse_model(spec: Raw, deployment: str) -> ModelSource:
    """Return where the model is and what it is called: by default as the deployment."""
    model = spec["model"]
    uri: str = model["uri"]
    name = model.get("name", deployment)
    size = parse_bytes("spec.model.size", model["size"]) if "size" in model else None
    _refuse_others_fields(model, uri)
    if uri.startswith("hf://"):
        hub = _parse_hub(model, spec.get("cache") or {}, deployment)
        return ModelSource(_hub_path(hub), None, name, hub, size)
    if uri.startswith("oci://"):
        path = _below(IMAGE_ROOT, _parse_path(model.get("path", "")))
        return ModelSource(path, None, name, None, size, _parse_image(model))
    if uri.startswith("file:///"):
        return ModelSource(uri.removeprefix("file://"), None, name, None, size)
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    if not uri.startswith("pvc://") or not claim:
        raise _unknown(uri)
    return ModelSource(_below(MODELS_ROOT, claim, path), claim, name, None, size)


def parse_pre_pull(spec: Raw) -> PrePull | None:
    """Return which nodes fetch the model ahead, None for none. Raises SpecError where there is nothing to be kept."""
    wanted, uri = spec["model"].get("prePull"), spec["model"]["uri"]
    if wanted is None:
        return None
    if not (uri.startswith("oci://") or (uri.startswith("hf://") and "claimName" in (spec.get("cache") or {}))):
        raise SpecError("spec.model.prePull needs spec.model.uri oci://, or hf:// with spec.cache.claimName; remove it")
    return PrePull(dict(wanted.get("nodeSelector") or {}))


def parse_secret(reference: Raw | None, *, default_key: str) -> SecretKey | None:
    """Return which value of which Secret is meant, None for none."""
    return SecretKey(reference["name"], reference.get("key", default_key)) if reference else None


def _refuse_others_fields(model: Raw, uri: str) -> None:
    """Raise SpecError where a field is set that goes with another kind of uri."""
    for fields, scheme in ((_OF_HUBS, "hf://"), (_OF_IMAGES, "oci://")):
        if wrong := [field for field in fields if field in model and not uri.startswith(scheme)]:
            raise SpecError(f"spec.model.{wrong[0]} is for {scheme} only; remove it or change spec.model.uri")


def _parse_hub(model: Raw, cache: Raw, deployment: str) -> Hub:
    repo, _, file = model["uri"].removeprefix("hf://").partition(":")
    if [bool(part) for part in repo.split("/")] != [True, True]:
        raise _unknown(model["uri"])
    size = cache.get("size")
    return Hub(
        repo=repo,
        revision=model.get("revision", "main"),
        token=parse_secret(model.get("tokenSecretRef"), default_key="token"),
        claim=cache.get("claimName") or (f"{deployment}-cache" if size is not None else None),
        claim_size=None if size is None or "claimName" in cache else str(size),
        storage_class=cache.get("storageClassName"),
        file=file,
    )


def _parse_image(model: Raw) -> ModelImage:
    reference = model["uri"].removeprefix("oci://")
    if not _IMAGE.fullmatch(reference):
        raise _unknown(model["uri"])
    return ModelImage(reference, model.get("pullPolicy"))


def _parse_path(path: str) -> str:
    """Return where the model is within its image."""
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise SpecError(
            f"spec.model.path is {path!r}; allowed are paths within the image, without .. or / at the start"
        )
    return path


def _unknown(uri: str) -> SpecError:
    return SpecError(f"spec.model.uri is {uri!r}; allowed are {_ALLOWED}")


def _below(root: str, *parts: str) -> str:
    return "/".join((root, *filter(None, parts)))


def _hub_path(hub: Hub) -> str:
    """Return where the downloader puts it; a revision such as refs/pr/1 is one directory."""
    return f"{CACHE_ROOT}/{hub.repo}/{hub.revision.replace('/', '--')}{hub.file and f':{hub.file}'}"
