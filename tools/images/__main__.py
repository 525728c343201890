"""`python -m tools.images [COMMAND]`: build, deliver, list, measure and compare the three images without a registry."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tools.bootstrap import machine_lock
from tools.images import content, sbom, sizes
from tools.images.build import Builder, Names, remove_old
from tools.images.deliver import deliver, registry_manifest
from tools.images.reproduce import reproduce
from tools.images.settings import ImagesFailed, Settings
from tools.images.store import Store

STARTED = time.monotonic()


def say(text: str) -> None:
    """Print one line of progress with the seconds since the start."""
    print(f"[images] {time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.images", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("tag", help="print the tag that the sources make")
    commands.add_parser("build", help="build what is missing")
    commands.add_parser("deliver", help="build what is missing, and bring the images to the cluster (the default)")
    listing = commands.add_parser("sbom", help="write what is in each image, as CycloneDX JSON")
    listing.add_argument("folder", type=Path, help="where to, such as build/sbom")
    commands.add_parser("sizes", help="print how big the images are, and fail if one is over its budget")
    again = commands.add_parser("reproduce", help="build parts twice without a cache, and fail if their digests differ")
    again.add_argument("parts", nargs="*", metavar="PART", help="operator, gateway, worker; all by default")
    commands.add_parser("prune", help="remove all builds but the current one")
    return parser.parse_args()


def main() -> None:
    """Run one command; a failure is one message, not a traceback."""
    given = arguments()
    command = given.command or "deliver"
    try:
        settings = Settings.from_environment()
        if command == "tag":
            print(content.tag(settings.source))
            return
        if command == "sbom":
            print(*sbom.write(settings.source, given.folder, settings.repository), sep="\n")
            return
        with machine_lock("images"):
            if command == "reproduce":
                reproduce(settings, Store(settings), reproducible(given.parts), say)
            else:
                run(command, settings)
    except ImagesFailed as failure:
        sys.exit(f"[images] {failure}")


def reproducible(parts: list[str]) -> list[str]:
    """Return the parts that the user named, or all. Raises ImagesFailed if there is no such part."""
    for part in parts:
        if part not in content.PARTS:
            raise ImagesFailed(f"PART {part!r} is none of {', '.join(content.PARTS)}")
    return parts or list(content.PARTS)


def run(command: str, settings: Settings) -> None:
    """Run a command that works on the storage."""
    store = Store(settings)
    names = Names.of(settings)
    if command == "prune":
        removed = remove_old(store, names, keep=1)
        say(f"removed {len(removed)} old images")
        return
    Builder(settings, store, names, say).build_missing()
    if command == "sizes":
        report_sizes(store, names)
    if command == "deliver":
        deliver(settings, store, names, say)


def report_sizes(store: Store, names: Names) -> None:
    """Print the sizes. Raises ImagesFailed if one is over its budget."""
    found = sizes.sizes(store, names, registry_manifest)
    for size in found:
        say(str(size))
    if told := sizes.complaints(found):
        raise ImagesFailed("\n".join(told))


if __name__ == "__main__":
    main()
