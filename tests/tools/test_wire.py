"""The wire contract never loses what other releases rely on."""

from __future__ import annotations

import pytest

from tools.wire import NOTED, contract, dropped, keep

FIELD = "field dormouse.v1.WorkerStatus.state = 1 dormouse.v1.WorkerState"
RESOURCE = "resource inferencekeys spec.sha256: string"


def test_the_contract_has_all_that_was_ever_noted():
    assert keep(NOTED, contract(), is_check=True) == ""


def test_methods_fields_and_values_are_noted_with_what_makes_them_the_same():
    lines = contract()
    assert FIELD in lines
    assert "value dormouse.v1.WorkerState.WORKER_STATE_STANDBY = 10" in lines
    assert "resource inferencedeployments spec.model.uri: string" in lines
    assert "resource inferencedeployments spec.lifecycle.desiredState = 'Zero'" in lines
    assert "field dormouse.v1.StructuredOutputs.Choice.options = 1 repeated type 9" in lines
    watch = "(dormouse.v1.GetStatusRequest) returns (stream dormouse.v1.WorkerStatus)"
    assert f"rpc dormouse.v1.WorkerControl.WatchStatus {watch}" in lines
    assert (
        "rpc dormouse.v1.Relay.Carry (stream dormouse.v1.CarryRequest) returns (stream dormouse.v1.CarryResponse)"
        in lines
    )


@pytest.mark.parametrize(
    "instead", [[], [FIELD.replace("= 1", "= 99")], [FIELD.replace("dormouse.v1.WorkerState", "type 13")]]
)
def test_a_field_that_is_gone_renumbered_or_of_another_type_breaks_it(tmp_path, instead):
    noted, now = tmp_path / "wire.txt", sorted([line for line in contract() if line != FIELD] + instead)
    noted.write_text("\n".join(contract()) + "\n", "utf-8")
    before = noted.read_text("utf-8")
    assert FIELD in dropped(contract(), now)
    for is_check in (True, False):
        assert FIELD in keep(noted, now, is_check=is_check)
    assert noted.read_text("utf-8") == before, "what is broken is not noted"


@pytest.mark.parametrize("lost", [RESOURCE, "resource inferencedeployments spec.lifecycle.desiredState = 'Zero'"])
def test_a_field_or_value_that_resources_no_longer_have_breaks_it(lost):
    assert dropped(contract(), [line for line in contract() if line != lost]) == [lost]


def test_what_is_added_is_noted(tmp_path):
    noted, now = tmp_path / "wire.txt", contract()
    noted.write_text("\n".join(line for line in now if line != FIELD) + "\n", "utf-8")
    assert keep(noted, now, is_check=True) == "", "an addition breaks nothing"
    assert keep(noted, now, is_check=False) == ""
    assert noted.read_text("utf-8").splitlines() == now
