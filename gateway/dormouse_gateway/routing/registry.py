"""The router policies by name: ours, and those of installed packages, found by entry point.

A package adds one by an entry point of the group `dormouse.router_policies` that points to a `PolicyFactory`, as a
policy's class is. Nothing of it is imported before somebody asks for that policy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from dormouse_gateway.routing.built_in import LeastTokens, PrefixAffinity, RoundRobin
from dormouse_gateway.routing.policy import Choice, Demand, PolicyFactory, PolicyOptions, RouterPolicy, Worker

GROUP = "dormouse.router_policies"
DEFAULT_POLICY = "prefix-affinity"
BUILT_IN: Mapping[str, PolicyFactory] = {
    DEFAULT_POLICY: lambda options: PrefixAffinity(options.affinity_bound),
    "least-tokens": lambda _: LeastTokens(),
    "round-robin": lambda _: RoundRobin(),
}

_LOG = logging.getLogger(__name__)


class BadPolicy(Exception):
    """A policy cannot be had; the message names it, and the package if there is one."""


class GuardedPolicy:
    """A policy of a package. Where it fails, the least loaded worker is chosen: its mistakes must end no request."""

    def __init__(self, what: str, policy: RouterPolicy) -> None:
        """Take how logs call it."""
        self._what = what
        self._policy = policy
        self._instead = LeastTokens()
        self._num_failures = 0

    def __repr__(self) -> str:
        """Show how often it failed."""
        return f"GuardedPolicy({self._what}, {self._num_failures} failures)"

    def choose(self, demand: Demand, workers: Sequence[Worker]) -> Choice | None:
        """See `RouterPolicy`."""
        try:
            return _checked(self._policy.choose(demand, workers), workers)
        except Exception:  # noqa: BLE001  # whatever a foreign package raises; it is logged
            self._complain()
            return self._instead.choose(demand, workers)

    def _complain(self) -> None:
        """Log the first failure, and each that doubles their number: there may be one for every request."""
        self._num_failures += 1
        if self._num_failures.bit_count() == 1:
            _LOG.exception("%s failed %d times; the least loaded worker is chosen", self._what, self._num_failures)


def make_policy(name: str, options: PolicyOptions, installed: Iterable[EntryPoint] | None = None) -> RouterPolicy:
    """Return the policy of this name. Raises BadPolicy for an unknown name, one offered twice, or a useless package."""
    theirs = _by_name(entry_points(group=GROUP) if installed is None else installed)
    if name in theirs:
        return _made(theirs[name], options)
    if name not in BUILT_IN:
        raise BadPolicy(f"no router policy is called {name!r}; known are {', '.join([*BUILT_IN, *theirs])}")
    return BUILT_IN[name](options)


def _by_name(installed: Iterable[EntryPoint]) -> dict[str, EntryPoint]:
    """Return the packages' policies, sorted: which one routes must not depend on the order of installation."""
    found: dict[str, EntryPoint] = {}
    for entry in sorted(installed, key=lambda entry: entry.name):
        if entry.name in found or entry.name in BUILT_IN:
            other = _origin(found[entry.name]) if entry.name in found else "dormouse itself"
            raise BadPolicy(
                f"router policy {entry.name!r} is offered twice, by {other} and by {_origin(entry)}; "
                "uninstall one of them or rename its entry point"
            )
        found[entry.name] = entry
    return found


def _made(entry: EntryPoint, options: PolicyOptions) -> RouterPolicy:
    what = f"router policy {entry.name!r} of {_origin(entry)}"
    try:
        policy = entry.load()(options)
    except Exception as error:  # whatever a foreign package raises
        raise BadPolicy(f"{what}: making {entry.value} fails: {type(error).__name__}: {error}") from error
    if not callable(getattr(policy, "choose", None)):
        raise BadPolicy(f"{what}: {entry.value} makes no policy: it has no method choose")
    return GuardedPolicy(what, policy)


def _checked(choice: Choice | None, workers: Sequence[Worker]) -> Choice | None:
    """Return the choice. Raises ValueError if it is none of the workers."""
    if choice is not None and choice.worker not in workers:
        raise ValueError(f"{choice.worker!r} is none of the {len(workers)} workers")
    return choice


def _origin(entry: EntryPoint) -> str:
    """Return the distribution, as pip calls it."""
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
