"""The kit finds every mutant of the stand-in, by the rule that it breaks and by no other."""

from __future__ import annotations

import pytest

from dormouse_api.capabilities import Capability
from dormouse_conformance.checks import SECTIONS
from dormouse_conformance.run import Outcome
from tests.conformance.kit import findings, outcomes, served
from tests.conformance.mutants import MUTANTS, Mutant

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule} {mutant.instead[:40]!r}")
NOT_SHOWN = {
    "fencing.equal",  # whoever breaks it cannot be brought to READY
    "sleep.taken-back",  # the same line serves draining.reopens
    "errors.bytes",  # gRPC's own, in the stand-in
}


@each_mutant
def test_a_mutant_is_found_by_the_rule_that_it_breaks(mutant: Mutant):
    section = mutant.rule.partition(".")[0]
    failed = failed_rules(mutant, mutant.only or (section,))
    assert failed.keys() == {mutant.rule} | {rule for rule in mutant.also if rule.startswith(f"{section}.")}, failed


@pytest.mark.slow
@each_mutant
def test_a_mutant_breaks_no_other_rule(mutant: Mutant):
    failed = failed_rules(mutant, mutant.only)
    assert next(iter(failed), "nothing") == mutant.rule, failed
    assert failed.keys() - {mutant.rule} == mutant.also, failed


def test_every_rule_can_be_found_broken():
    rules = {section.full_name(rule) for section in SECTIONS for rule in section.rules}
    assert rules - {mutant.rule for mutant in MUTANTS} == NOT_SHOWN


def failed_rules(mutant: Mutant, only: tuple[str, ...]) -> dict[str, str]:
    """Return the rules that the kit finds broken, in its order, and what was seen of each."""
    with served(mutant, frozenset(Capability) - {mutant.lacks}) as target:
        return outcomes(findings(target, only), Outcome.FAILED)
