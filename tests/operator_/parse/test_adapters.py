"""spec.adapters, where the schema was not enforced."""

from __future__ import annotations

import pytest

from dormouse_operator.model.adapters import Adapter
from dormouse_operator.parse import SpecError, parse_deployment

SQL = {"name": "sql", "uri": "pvc://loras/team/sql"}


def parse(*adapters, pipeline=1, **engine):
    spec = {"model": {"uri": "file:///models/tiny", "name": "tiny"}, "adapters": list(adapters)}
    spec["parallelism"] = {"pipeline": pipeline}
    said = {"enableLora": True, "maxLoras": 2, **engine}
    metadata = {"namespace": "team", "name": "base", "uid": "u"}
    return parse_deployment({"metadata": metadata, "spec": {**spec, "engine": said}}).adapters


def test_adapters_lie_where_their_claims_are_mounted():
    read = parse(SQL, {"name": "a", "uri": "file:///loras/a", "pin": True, "digest": "ab" * 32})
    assert read == (
        Adapter(name="a", uri="file:///loras/a", path="/loras/a", digest="ab" * 32, is_pinned=True),
        Adapter(name="sql", uri="pvc://loras/team/sql", path="/adapters/loras/team/sql", claim="loras"),
    )


def test_adapters_of_a_hub_keep_their_uri_and_name_a_token():
    uri = "hf://org/sql@v1"
    (read,) = parse({"name": "sql", "uri": uri, "tokenSecretRef": {"name": "hub", "key": "read"}})
    assert read == Adapter(name="sql", uri=uri, path=uri, token="hub/read")
    assert (read.is_fetched, read.secret) == (True, "hub")
    (read,) = parse({"name": "sql", "uri": uri, "tokenSecretRef": {"name": "hub"}})
    assert read.token == "hub/token"


def test_groups_of_several_pods_fetch_nothing():
    assert parse(SQL, pipeline=2)
    with pytest.raises(SpecError, match=r"adapters\[a\].uri is 'hf://a/b', which is not fetched for groups"):
        parse({"name": "a", "uri": "hf://a/b"}, pipeline=2)


@pytest.mark.parametrize(
    ("adapters", "engine", "words"),
    [
        ([SQL], {"enableLora": False}, "set spec.engine.enableLora true"),
        ([SQL, SQL], {}, "spec.adapters names 'sql' more than once"),
        ([{**SQL, "name": "tiny"}], {}, r"spec.adapters\[tiny\] has the name of the base model"),
        ([{**SQL, "name": "a b"}], {}, "allowed are 1 to 128 letters"),
        ([{**SQL, "name": ""}], {}, "allowed are 1 to 128 letters"),
        ([{**SQL, "digest": "AB"}], {}, "allowed are 64 hexadecimal digits"),
        ([{**SQL, "uri": "hf://a"}], {}, "allowed are hf://ORG/NAME and hf://ORG/NAME@REVISION"),
        ([{**SQL, "tokenSecretRef": {"name": "s"}}], {}, r"\[sql\].tokenSecretRef is for hf:// only"),
        ([{**SQL, "uri": "pvc://c/../x"}], {}, "must not hold .."),
        ([{**SQL, "uri": "file:///x\0y"}], {}, r"\[sql\].uri is 'file:///x\\x00y'; the path must not hold a NUL"),
        ([{**SQL, "uri": "pvc://"}], {}, "allowed are pvc://CLAIM/PATH"),
        ([{**SQL, "uri": "/x"}], {}, "allowed are pvc://CLAIM/PATH"),
        ([{**SQL, "uri": "file:///"}], {}, "allowed are pvc://CLAIM/PATH"),
        (
            [{**SQL, "name": f"n{i}"} for i in range(3)],
            {},
            "has 3; the most is spec.engine.maxCpuLoras, 2",
        ),
        ([{**SQL, "name": f"n{i}", "pin": True} for i in range(2)], {}, "pins 2, and spec.engine.maxLoras is 2"),
        ([{**SQL, "pin": True}], {"maxLoras": 1}, "pins 1, and spec.engine.maxLoras is 1"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_field_and_value(adapters, engine, words):
    with pytest.raises(SpecError, match=words):
        parse(*adapters, **engine)
