"""spec.roles becomes who computes prompts, by the number of the replica; what it is not combined with is refused."""

import pytest

from dormouse_api.names import DECODE, PREFILL
from dormouse_operator.model.roles import Roles
from dormouse_operator.parse.roles import parse_roles
from dormouse_operator.parse.values import SpecError
from tests.operator_.refused_specs import KEPT, ROLES

SPEC = {**KEPT, "roles": ROLES}


def test_the_first_replicas_compute_prompts():
    roles = parse_roles(SPEC)
    assert [roles.role_of(index) for index in range(4)] == [PREFILL, PREFILL, DECODE, DECODE]


def test_without_them_all_do_the_same():
    assert parse_roles(KEPT) is None


@pytest.mark.parametrize("beside", [{"replicas": 0}, {"scaling": {"minReplicas": 3, "maxReplicas": 4}}])
def test_none_is_enough_for_roles_to_stand_and_so_is_one_more_than_they_need(beside):
    assert parse_roles(SPEC | beside) == Roles(2)


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"roles": {}}, r"spec\.roles\.prefill\.replicas is missing"),
        ({"engine": {}}, r"needs spec\.engine\.kvStore"),
        ({"serving": {"inferencePool": True}}, r"needs spec\.serving\.inferencePool false"),
        ({"replicas": 2}, r"spec\.replicas is 2; the least is one more than spec\.roles\.prefill\.replicas, 2"),
        ({"scaling": {"maxReplicas": 4}}, r"spec\.scaling\.minReplicas is 1; the least is one more"),
    ],
)
def test_where_the_schema_was_not_enforced_it_is_refused_by_name(beside, words):
    with pytest.raises(SpecError, match=words):
        parse_roles(SPEC | beside)
