"""What the chart says of workers' connections is parsed once, as the API server would store it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dormouse_operator.model import Arrows
from dormouse_operator.parse import SpecError, as_stored, parse_arrows
from dormouse_operator.settings import SettingsError, parse_settings

EMPTY: dict[str, Any] = {"workers": {"ingress": [], "egress": []}, "ranks": {"ports": [], "egress": []}}


def test_no_text_means_no_policies():
    assert parse_arrows("") is None
    assert parse_settings({}).arrows is None


def test_empty_rules_deny_everything():
    assert parse_arrows(json.dumps(EMPTY)) == Arrows((), (), (), ())


def test_rules_are_kept_in_their_order():
    rules = [{"ports": [{"protocol": "TCP", "port": port}]} for port in (50051, 8080)]
    given = {"workers": {"ingress": rules, "egress": rules[:1]}, "ranks": {"ports": [{"port": 1}], "egress": rules[1:]}}
    wanted = Arrows(tuple(rules), tuple(rules[:1]), ({"protocol": "TCP", "port": 1},), tuple(rules[1:]))
    assert parse_settings({"DORMOUSE_NETWORK_POLICY": json.dumps(given)}).arrows == wanted


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("{", "no JSON"),
        ("[]", "it is to be an object of workers and ranks"),
        ("null", "it is to be an object of workers and ranks"),
        ('{"workers": {}}', "it is to be an object of workers and ranks"),
        (json.dumps({**EMPTY, "more": {}}), "it is to be an object of workers and ranks"),
        (json.dumps({**EMPTY, "workers": []}), "workers is to be an object of ingress and egress"),
        (json.dumps({**EMPTY, "ranks": {"ports": []}}), "ranks is to be an object of ports and egress"),
        (json.dumps({**EMPTY, "workers": {"ingress": {}, "egress": []}}), "workers.ingress is to be a list of objects"),
        (json.dumps({**EMPTY, "ranks": {"ports": [1], "egress": []}}), "ranks.ports is to be a list of objects"),
    ],
)
def test_a_bad_text_stops_the_program_and_names_the_variable_and_the_place(given: str, complaint: str):
    with pytest.raises(SpecError, match=complaint):
        parse_arrows(given)
    with pytest.raises(SettingsError, match=f"DORMOUSE_NETWORK_POLICY: .*{complaint}"):
        parse_settings({"DORMOUSE_NETWORK_POLICY": given})


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ({"ports": [{"port": 53}]}, {"ports": [{"port": 53, "protocol": "TCP"}]}),
        ({"ports": [{"port": 53, "protocol": "UDP"}]}, {"ports": [{"port": 53, "protocol": "UDP"}]}),
        ({"ports": [{}]}, {"ports": [{"protocol": "TCP"}]}),
        ({"ports": [{"port": "grpc", "protocol": None}]}, {"ports": [{"port": "grpc", "protocol": "TCP"}]}),
        ({"to": [], "ports": [], "from": None}, {}),
        ({"to": [{"podSelector": {}}]}, {"to": [{"podSelector": {}}]}),
        ({"to": [{"podSelector": {"matchLabels": {}}}]}, {"to": [{"podSelector": {}}]}),
        ({"matchLabels": {"port": "north"}}, {"matchLabels": {"port": "north"}}),
        ({"ports": "all"}, {"ports": "all"}),
    ],
)
def test_what_the_api_server_leaves_out_or_adds_makes_no_difference(written: dict[str, Any], stored: dict[str, Any]):
    assert as_stored([written]) == [stored]
    assert as_stored(stored) == stored
