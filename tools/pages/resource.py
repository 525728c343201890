"""A page for each custom resource of docs/reference: every field of it, from its definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tools.bootstrap import ROOT
from tools.pages.schemas import Field, Schema, as_written, fields
from tools.pages.tables import code, escaped, page, table

_HEADS = ("Field", "Type", "Default", "Allowed", "What")


def schema(plural: str) -> Schema:
    """Return the schema of a resource, which all its versions share."""
    path = ROOT / "crds" / f"{plural}.yaml"
    version, *_ = yaml.safe_load(path.read_text("utf-8"))["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]
    return found


def all_fields(plural: str) -> list[Field]:
    """Return the fields of spec and status."""
    whole = schema(plural)
    return [field for part in ("spec", "status") for field in fields(whole["properties"][part], part)]


def pages() -> dict[str, str]:
    """Return file name → text of the page of each resource."""
    deployments = _text("inferencedeployments", "InferenceDeployment", _DEPLOYMENTS)
    adapters = _text("inferenceadapters", "InferenceAdapter", _ADAPTERS)
    pools = _text("gpupools", "GpuPool", _POOLS)
    keys = _text("inferencekeys", "InferenceKey", _KEYS)
    return {
        "inferencedeployment.md": deployments,
        "gpupool.md": pools,
        "inferenceadapter.md": adapters,
        "inferencekey.md": keys,
    }


def _text(plural: str, kind: str, introduction: str) -> str:
    whole = schema(plural)
    parts = [
        introduction,
        f"{escaped(whole['description'])}",
        "## spec",
        _plain(whole["properties"]["spec"], "spec"),
        *(_group(field) for field in _groups(whole["properties"]["spec"], "spec")),
        f"## Rules\n\n{table(('Where', 'What is refused'), _rules(whole, ''))}",
        f"## status\n\n{escaped(whole['properties']['status']['description'])}",
        table(_HEADS[:2] + _HEADS[4:], ((*row[:2], row[4]) for row in map(_row, _status(whole)))),
    ]
    return page(kind, *parts)


def _status(whole: Schema) -> Iterator[Field]:
    return fields(whole["properties"]["status"], "status")


def _groups(schema: Schema, path: str) -> Iterator[Field]:
    """Yield the fields of the first storey that have fields of their own."""
    for name, below in schema["properties"].items():
        if "properties" in below:
            yield Field(f"{path}.{name}", below)


def _plain(schema: Schema, path: str) -> str:
    """Return the table of the fields of the first storey that are no group, with those of what is in their lists."""
    single = {name: below for name, below in schema["properties"].items() if "properties" not in below}
    return table(_HEADS, map(_row, fields({"properties": single}, path)))


def _group(field: Field) -> str:
    rows = table(_HEADS, map(_row, fields(field.schema, field.path)))
    return f"### {field.path}\n\n{escaped(field.description)}\n\n{rows}"


def _row(field: Field) -> tuple[str, ...]:
    default = as_written(field.schema.get("default"))
    return code(field.path), field.kind, code(default), escaped(field.allowed), escaped(field.description)


def _rules(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield code(path + rule.get("fieldPath", "")), escaped(rule["message"])
    for name, below in schema.get("properties", {}).items():
        yield from _rules(below, f"{path}.{name}".lstrip("."))


_VERSIONS = "versions `v1alpha1` and `v1beta1`, which [say the same](../operations/upgrades.md#versions-of-resources)"
_DEPLOYMENTS = f"""`inference.dormouse.dev`, {_VERSIONS}, short name `infd`. `kubectl explain infd.spec` shows
the same text. An unknown field is an error. See [Lifecycle](../concepts/lifecycle.md) and
[Place pods and models](../how-to/placement.md)."""
_POOLS = f"""`inference.dormouse.dev`, {_VERSIONS}, short name `gpool`. `kubectl explain gpool.spec`
shows the same text. An unknown field is an error. See [GPU pools](../concepts/pools.md)."""
_ADAPTERS = f"""`inference.dormouse.dev`, {_VERSIONS}, short name `infa`. The same text is told by `kubectl explain
infa.spec`. A field that is not here is an error. [Adapters](../concepts/adapters.md) has the rest."""
_KEYS = f"""`inference.dormouse.dev`, {_VERSIONS}, short name `infk`. `kubectl explain infk.spec` tells the same text.
An unknown field is an error. See [Keys](../how-to/keys.md)."""
