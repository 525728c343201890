"""The conformance kit on our worker, on a stand-in, and on mutants of the stand-in that break one line each.

Rows go into platform.json.
"""

from __future__ import annotations

from rich.console import Console

from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtLeast, Row
from bench.worker import Worker
from dormouse_api.capabilities import Capability
from dormouse_conformance.run import Finding, Outcome
from tests.conformance.kit import findings, outcomes, served, target
from tests.conformance.mutants import MUTANTS, Mutant

PATIENCE_S = 120.0
FLAGS = ("--max-model-len", "512", "--memory-limit", "2Gi", "--dtype", "float32")


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    worker = Worker(ensure_model("tiny"), flags=FLAGS)
    try:
        own = findings(target(worker.port, worker.control_port, PATIENCE_S))
    finally:
        worker.close()
    with served() as where:
        stand_in = findings(where)
    mutants = MUTANTS[: options.count]
    missed = [mutant for mutant in mutants if not is_found(mutant)]
    for mutant in missed:
        console.print(f"  not found by {mutant.rule}: {mutant.instead}", highlight=False, markup=False)
    return [
        _kept("our worker", own),
        _kept("a stand-in", stand_in),
        _row(
            "conformance kit: mutants found by the rule that they break, first",
            len(mutants) - len(missed),
            len(mutants),
        ),
    ]


def is_found(mutant: Mutant) -> bool:
    """Return whether the first rule that the kit finds broken is the one that the mutant breaks."""
    with served(mutant, frozenset(Capability) - {mutant.lacks}) as where:
        broken = outcomes(findings(where, mutant.only), Outcome.FAILED)
    return next(iter(broken), "") == mutant.rule


def _kept(who: str, found: list[Finding]) -> Row:
    return _row(
        f"conformance kit: rules kept by {who}", sum(one.outcome is Outcome.PASSED for one in found), len(found)
    )


def _row(what: str, count: int, all_of_them: int) -> Row:
    return Row(what, float(count), f"of {all_of_them}", goal=AtLeast(all_of_them))


if __name__ == "__main__":
    main("conformance", __doc__, measure)
