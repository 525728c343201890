"""Mutation testing of what decides (scheduler, blocks, drafts, validator, planners, pools): what no test notices.

mutmut wants a project whose packages lie in `src` and whose tests lie beside it, and this repository keeps its packages
under the parts they belong to. So it runs in build/mutation, a project made of links to the real one. `[tool.mutmut]`
in pyproject.toml says what is mutated and which tests judge, docs/design/mutation.md why the known survivors live.
`tools.mutation_judge` judges; build/mutation/judged.log tells how far it is.

    python -m tools.mutate                                     every mutant anew
    python -m tools.mutate 'dormouse_worker.engine.swap.*'     some again, once tests or code have changed

MOST_SECONDS=0.5 judges each mutant by its quickest tests that take so long together: what lives may not live.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping

from tools.bootstrap import ROOT, bare_python

PROJECT = ROOT / "build" / "mutation"
LINKS = {
    "src/dormouse_worker": "worker_image/dormouse_worker",
    "src/dormouse_operator": "operator/dormouse_operator",
    "src/dormouse_gateway": "gateway/dormouse_gateway",
    "api": "api",
    "kube": "kube",
    "crds": "crds",
    "examples": "examples",
    "tools": "tools",
    "tests": "tests",
    "pyproject.toml": "pyproject.toml",
}
UNNOTICED = ("survived", "no tests", "suspicious")
NOT_RUN = "not checked"


def lay_out() -> None:
    """Link the project's parts to where mutmut looks for them."""
    for name, target in LINKS.items():
        link = PROJECT / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(ROOT / target, link.parent))


def run(*args: str) -> str:
    """Run a module in the laid-out project. The real packages must not be importable there, only the mutated ones."""
    environment = os.environ | {"PYTHONPATH": f"{PROJECT / 'api'}:{PROJECT / 'kube'}"}
    command = ["nice", "-n", "10", str(bare_python()), "-m", *args]
    done = subprocess.run(command, cwd=PROJECT, env=environment, check=False, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(args)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def verdicts() -> dict[str, str]:
    """Return what became of each mutant, by its name."""
    return parse(run("mutmut", "results", "--all", "true"))


def parse(results: str) -> dict[str, str]:
    """Return what mutmut tells of each mutant, by its name."""
    lines = (line.strip().rpartition(": ") for line in results.splitlines())
    return {name: verdict for name, separator, verdict in lines if separator}


def tell(found: Mapping[str, str]) -> Iterator[str]:
    """Yield for each module how many of its mutants no test noticed. Those that were not run do not count."""
    judged = {name: verdict for name, verdict in found.items() if verdict != NOT_RUN}
    mutants = Counter(module_of(name) for name in judged)
    live = Counter(module_of(name) for name, verdict in judged.items() if verdict in UNNOTICED)
    yield from (f"{module}: {live[module]} of {mutants[module]}" for module in sorted(mutants))


def module_of(name: str) -> str:
    """Return the module of a mutant."""
    return name.rpartition(".")[0]


def main() -> None:
    """Run all mutants, or those named by patterns; print those that no test noticed."""
    started_s = time.monotonic()
    if not sys.argv[1:]:
        shutil.rmtree(PROJECT, ignore_errors=True)  # mutmut keeps old verdicts, also of tests that have changed
    lay_out()
    run("tools.mutation_judge", *sys.argv[1:])
    found = verdicts()
    names = [name for name, verdict in found.items() if verdict in UNNOTICED]
    for name in names:
        print(run("mutmut", "show", name))
    print(*tell(found), sep="\n")
    print(f"{len(names)} mutants were not noticed, {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
