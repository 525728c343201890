"""What the conformance kit finds of workers that keep the protocol, that claim little, and that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dormouse_api.capabilities import MEANINGS, Capability
from dormouse_api.testing_tickets import GATEWAY_SEED, OPERATOR_SEED, POD_UID
from dormouse_conformance.__main__ import main
from dormouse_conformance.checks import SECTIONS
from dormouse_conformance.run import Outcome
from tests.conformance.kit import findings, outcomes, served
from tests.conformance.mutants import Mutant
from tests.ports import free_port

CLAIMED = frozenset({Capability.SLEEP_LEVEL_2})
LATE = Mutant("sleep.late", 'if request.HasField("request_counter") and', "if False and")


@pytest.fixture
def seeds(tmp_path: Path) -> list[str]:
    """The flags by which the kit proves its roles to a worker of tests."""
    files = {"operator": OPERATOR_SEED, "gateway": GATEWAY_SEED}
    for name, seed in files.items():
        (tmp_path / name).write_text(seed, "utf-8")
    flags = [word for name in files for word in (f"--{name}-seed-file", str(tmp_path / name))]
    return [*flags, "--pod-uid", POD_UID, "--timeout", "5"]


def test_a_worker_that_keeps_everything_passes_everything():
    with served() as target:
        found = findings(target)
    assert {one.rule: one.seen for one in found if one.outcome is not Outcome.PASSED} == {}


def test_a_worker_that_claims_little_passes_what_it_claims_and_refuses_the_rest():
    with served(claims=CLAIMED) as target:
        found = findings(target)
    assert outcomes(found, Outcome.FAILED) == {}
    assert outcomes(found, Outcome.BLOCKED) == {}
    rules = {section.full_name(rule): rule for section in SECTIONS for rule in section.rules}
    left_out = {name for name, rule in rules.items() if rule.needs is not None and rule.needs not in CLAIMED}
    assert outcomes(found, Outcome.NOT_CLAIMED).keys() == left_out


def test_without_standby_a_worker_that_serves_already_is_not_asked_what_only_a_new_one_can_be():
    with served(claims=CLAIMED) as target:
        findings(target, ["agreement.exact"])
        again = findings(target, ["agreement.unserved", "agreement.again"])
    assert [one.outcome for one in again] == [Outcome.BLOCKED, Outcome.PASSED]
    assert "has just started" in again[0].seen


def test_a_broken_rule_is_told_with_what_was_expected_what_was_seen_and_where_it_stands(seeds, capsys):
    with served(LATE) as target:
        code = main([target.address, "--control", target.control_address, *seeds, "--only", "sleep.late", "life"])
    lines = capsys.readouterr().out
    assert code == 1
    assert "failed      sleep.late" in lines
    assert "docs/reference/worker-protocol.md#sleep" in lines
    assert "expected PrepareSleep with an older request_counter: FAILED_PRECONDITION" in lines
    assert "5 passed, 1 failed" in lines


def test_findings_are_told_as_json(seeds, capsys):
    with served() as target:
        code = main([target.address, "--control", target.control_address, *seeds, "--only", "doors", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["claims"] == sorted(Capability)
    assert told["counts"] == {"passed": 4, "failed": 0, "blocked": 0, "not claimed": 0}
    assert told["findings"][0]["rule"] == "doors.operator"


def test_claims_can_be_said_instead_of_what_the_worker_tells(seeds, capsys):
    with served() as target:
        arguments = [
            target.address,
            "--control",
            target.control_address,
            *seeds,
            "--only",
            "relay",
            "--claims",
            "resume",
        ]
        assert main(arguments) == 0
    assert "not claimed relay.hello" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "ADDRESS is needed"),
        (("127.0.0.1:1", "--only", "dreams"), "dreams: no section and no rule has this name"),
        (("127.0.0.1:x",), "the port is no number"),
        (("127.0.0.1:1", "--claims", "dreams"), "dreams"),
        (("127.0.0.1:1", "--operator-seed-file", "/nowhere"), "/nowhere"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_said(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_worker_that_is_not_there_is_not_asked(capsys):
    address = f"127.0.0.1:{free_port()}"
    assert main([address, "--control", address, "--timeout", "0.1"]) == 2
    assert f"{address} cannot be asked" in capsys.readouterr().err


def test_the_variables_of_a_worker_that_trusts_the_kit_are_printed(capsys):
    assert main(["--environment"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("=")[0] for line in lines] == [
        "DORMOUSE_OPERATOR_KEY",
        "DORMOUSE_GATEWAY_KEY",
        "DORMOUSE_POD_UID",
    ]


def test_every_rule_has_a_name_of_its_own_and_every_capability_a_meaning(capsys):
    assert main(["--list"]) == 0
    names = [section.full_name(rule) for section in SECTIONS for rule in section.rules]
    assert len(set(names)) == len(names)
    assert capsys.readouterr().out.count("\n") == len(names) + len(MEANINGS)
    assert set(MEANINGS) == set(Capability)
