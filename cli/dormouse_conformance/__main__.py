"""The command line of the conformance kit."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from dormouse_api import __version__
from dormouse_api.capabilities import MEANINGS, Capability
from dormouse_api.names import CONTROL_PORT, INFERENCE_PORT, Role
from dormouse_api.tickets import SigningKey, TicketBook
from dormouse_conformance.checks import SECTIONS
from dormouse_conformance.findings import Blocked, Refused
from dormouse_conformance.rules import SPECIFICATION
from dormouse_conformance.run import Finding, Outcome, ask, chosen
from dormouse_conformance.subject import Subject, Target

SEED = "the seed of the conformance kit's {}, which everybody knows"
POD_UID = "conformance"
TEXT = f"""
Ask a worker whether it keeps the worker protocol ({SPECIFICATION}).

The kit is the worker's operator, its gateway and its client in turns. It lets the worker drain, sleep, wake and start
again: give it a worker that nobody else uses. First it has to be trusted; start the worker with what this prints:

    python -m dormouse_conformance --environment

then ask, best while it still waits for its number of blocks:

    python -m dormouse_conformance 127.0.0.1:50051

Each rule that is broken is told with what was expected, what was seen, and where the specification says so. What the
worker does not claim (WorkerStatus.capabilities, or --claims) is left out. Ends with 0 if every rule is kept, with 1 if
one is broken or could not be tried, with 2 if the worker cannot be asked.
"""


def command_line() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(
        "dormouse_conformance", description=TEXT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "address", nargs="?", metavar="ADDRESS", help="host:port of Inference; the port is 50051 by default"
    )
    parser.add_argument("--control", metavar="ADDRESS", help="of WorkerControl; by default port 50052 of the same host")
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", default=[], help="rules or sections: fencing, sleep.late, …"
    )
    parser.add_argument(
        "--claims", metavar="NAME", nargs="*", help="capabilities, instead of those that the worker tells"
    )
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for anything that the worker does")
    parser.add_argument("--pod-uid", default=POD_UID, help="as the worker was started with in DORMOUSE_POD_UID")
    parser.add_argument(
        "--operator-seed-file", type=Path, metavar="FILE", help="the operator's seed, instead of the kit's own"
    )
    parser.add_argument("--gateway-seed-file", type=Path, metavar="FILE", help="the gateways' seed")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--list", action="store_true", help="print every rule and end")
    parser.add_argument(
        "--environment", action="store_true", help="print the variables of a worker that trusts the kit"
    )
    parser.add_argument("--version", action="version", version=__version__)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, print, and return the exit code."""
    parser = command_line()
    flags = parser.parse_args(arguments)
    if flags.list:
        print_rules()
        return 0
    if flags.environment:
        print_environment(flags)
        return 0
    if not flags.address:
        parser.error("ADDRESS is needed: host:port at which the worker serves dormouse.v1.Inference")
    try:
        rules, claims = chosen(SECTIONS, flags.only), _claims(flags.claims)
        worker = Subject(_target(flags))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        worker.meet(claims)
        return _report(flags, worker, ask(worker, rules))
    except (Blocked, Refused) as error:
        sys.stderr.write(f"{flags.address} cannot be asked: {error}\n")
        return 2
    finally:
        worker.close()


def print_rules() -> None:
    """Print every rule by its name."""
    for section in SECTIONS:
        for rule in section.rules:
            needs = f" [{rule.needs}]" if rule.needs else ""
            sys.stdout.write(f"{section.full_name(rule)}{needs}: {rule.says}\n")
    for capability, meaning in MEANINGS.items():
        sys.stdout.write(f"[{capability}]: it {meaning}\n")


def print_environment(flags: argparse.Namespace) -> None:
    """Print what a worker has to be started with."""
    for role, name in ((Role.OPERATOR, "DORMOUSE_OPERATOR_KEY"), (Role.GATEWAY, "DORMOUSE_GATEWAY_KEY")):
        sys.stdout.write(f"{name}={SigningKey(_seed(flags, role), role).public}\n")
    sys.stdout.write(f"DORMOUSE_POD_UID={flags.pod_uid}\n")


def _report(flags: argparse.Namespace, worker: Subject, findings: Iterable[Finding]) -> int:
    """Print what is found, as it is found, and return the exit code."""
    found = []
    for finding in findings:
        found.append(finding)
        if not flags.json:
            sys.stdout.write(_line(finding))
            sys.stdout.flush()
    counts = {outcome.value: sum(finding.outcome is outcome for finding in found) for outcome in Outcome}
    if flags.json:
        claims = sorted(worker.claims)
        told = {
            "address": flags.address,
            "claims": claims,
            "counts": counts,
            "findings": [asdict(one) for one in found],
        }
        sys.stdout.write(f"{json.dumps(told, indent=2)}\n")
    else:
        sys.stdout.write(", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) + "\n")
    return int(any(finding.outcome in {Outcome.FAILED, Outcome.BLOCKED} for finding in found))


def _line(finding: Finding) -> str:
    line = f"{finding.outcome:<11} {finding.rule} ({finding.seconds:.2f} s)\n"
    if finding.outcome is Outcome.FAILED:
        line += f"    {finding.says} ({finding.where})\n    expected {finding.expected}\n    saw {finding.seen}\n"
    elif finding.outcome is Outcome.BLOCKED:
        line += f"    {finding.seen}\n"
    return line


def _claims(names: Sequence[str] | None) -> frozenset[Capability] | None:
    """Return the claims, None for those that the worker tells. Raises ValueError."""
    return None if names is None else frozenset(Capability(name) for name in names)


def _target(flags: argparse.Namespace) -> Target:
    """Return where the worker is. Raises ValueError, OSError."""
    host, port = _host_port(flags.address, INFERENCE_PORT)
    control_host, control_port = _host_port(flags.control or host, CONTROL_PORT)
    return Target(
        address=f"{host}:{port}",
        control_address=f"{control_host}:{control_port}",
        pod_uid=flags.pod_uid,
        operator=_book(flags, Role.OPERATOR),
        gateway=_book(flags, Role.GATEWAY),
        patience_s=flags.timeout,
    )


def _host_port(address: str, default: int) -> tuple[str, int]:
    """Read host:port; an IPv6 address stands in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        return address, default
    if not port.isdecimal():
        raise ValueError(f"{address}: the port is no number")
    return host, int(port)


def _book(flags: argparse.Namespace, role: Role) -> TicketBook:
    return TicketBook(role, [SigningKey(_seed(flags, role), role)])


def _seed(flags: argparse.Namespace, role: Role) -> str:
    """Return the role's seed. Raises OSError."""
    file: Path | None = flags.operator_seed_file if role is Role.OPERATOR else flags.gateway_seed_file
    return file.read_text("utf-8").strip() if file else SEED.format(role)


if __name__ == "__main__":
    sys.exit(main())
