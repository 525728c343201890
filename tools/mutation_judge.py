"""Judges mutants: every one in a fork of one process that has collected all tests. Runs in the project of tools.mutate.

mutmut makes the mutants and keeps their verdicts, but starts pytest anew for each: 3 to 6 seconds. A fork costs some
hundredths of a second and the tests up to the first that fails; those that noticed the last mutants of the function
go first.
"""

from __future__ import annotations

import fnmatch
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import tomllib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.format_utils import mangled_name_from_mutant_name

SURVIVED, KILLED, NO_TESTS, TIMED_OUT = 0, 1, 33, 36  # mutmut's own codes
ROOM_BYTES = 3 * 2**30  # what a mutant may map beyond what its parent has
TEST_FOLDERS = {
    "dormouse_worker": "tests/worker",
    "dormouse_operator": "tests/operator_",
    "dormouse_gateway": "tests/gateway",
}


class Judge:
    """A pytest plugin: in place of running the collected tests it judges mutants by them.

    `most_s` is how long one mutant is judged: by its quickest tests that fit.
    """

    def __init__(self, patterns: Iterable[str], timeout_s: Callable[[float], float], most_s: float) -> None:
        self._patterns = tuple(patterns)
        self._most_s = most_s
        self._timeout_s = timeout_s
        self._killers: defaultdict[str, Counter[str]] = defaultdict(Counter)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge every mutant that was asked for."""
        items = {item.nodeid: item for item in session.items}
        tests, seconds = _which_tests(session)
        gc.freeze()  # else a child's first collection copies all that the tests' modules hold
        for data in _sources():
            names = [name for name in data.exit_code_by_key if self._is_wanted(name)]
            for name in names:
                function = mangled_name_from_mutant_name(name)
                known = self._killers[function] + self._killers[name.rpartition(".")[0]]
                order = sorted(tests.get(function, ()), key=seconds.__getitem__)
                ends_s = list(accumulate(seconds[test] for test in order))
                order = order[: max(1, bisect_right(ends_s, self._most_s))]
                order.sort(key=lambda test: -known[test])
                limit_s = self._timeout_s(sum(seconds[test] for test in order))
                started_s = time.monotonic()
                data.exit_code_by_key[name] = self._judge(name, [items[test] for test in order], limit_s)
                data.durations_by_key[name] = time.monotonic() - started_s
            if names:
                data.save()
                _say(_line_of(data, names))
        return True

    def _is_wanted(self, name: str) -> bool:
        return not self._patterns or any(fnmatch.fnmatch(name, pattern) for pattern in self._patterns)

    def _judge(self, name: str, items: list[pytest.Item], limit_s: float) -> int:
        if not items:
            return NO_TESTS
        status, killer = in_fork(lambda: _first_to_fail(name, items), limit_s)
        if killer:
            self._killers[mangled_name_from_mutant_name(name)][killer] += 1
            self._killers[name.rpartition(".")[0]][killer] += 1
        return status


def _first_to_fail(name: str, items: list[pytest.Item]) -> tuple[int, str]:
    """Run tests against one mutant until one fails."""
    set_mutant_under_test(name)
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if item.session.testsfailed:
            return KILLED, item.nodeid
    return SURVIVED, ""


def _which_tests(session: pytest.Session) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Run all tests once, in a fork; return which of them reach each function, and what each takes."""
    status, answer = in_fork(lambda: _observe(session), limit_s=3600)
    if status:
        pytest.exit(f"without a mutant there fails already: {answer}", returncode=1)
    tests, seconds = json.loads(answer)
    _say(f"{len(seconds)} tests take {sum(seconds.values()):.0f} s")
    return tests, seconds


def _observe(session: pytest.Session) -> tuple[int, str]:
    set_mutant_under_test("stats")
    tests, seconds = defaultdict(list), {}
    for item, after in zip(session.items, [*session.items[1:], None], strict=True):
        state()._stats.clear()  # noqa: SLF001  mutmut's trampolines write here which functions were called
        started_s = time.process_time()  # what waits for a busy machine waits for nothing of the test's
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        seconds[item.nodeid] = time.process_time() - started_s
        for function in state()._stats:  # noqa: SLF001
            tests[function].append(item.nodeid)
        if session.testsfailed:
            return KILLED, item.nodeid
    return SURVIVED, json.dumps((tests, seconds))


def in_fork(work: Callable[[], tuple[int, str]], limit_s: float) -> tuple[int, str]:
    """Do work in a child process; return its status and its text. It may hang, grow and crash."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (_mapped_bytes() + ROOM_BYTES,) * 2)
        try:
            status, text = work()
            with os.fdopen(writer, "w") as pipe:
                pipe.write(f"{status} {text}")
        finally:
            os._exit(KILLED)  # unless it has told
    os.close(writer)
    told, in_time = _read(reader, limit_s)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also what it has started
    _, ended = os.waitpid(child, 0)
    if told:
        number, _, said = told.partition(" ")
        return int(number), said
    return (os.waitstatus_to_exitcode(ended) if in_time else TIMED_OUT), ""


def _read(reader: int, limit_s: float) -> tuple[str, bool]:
    """Read until the other side is closed; return also whether that was in time."""
    deadline_s = time.monotonic() + limit_s
    parts: list[bytes] = []
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            if not (part := pipe.read(65536)):
                return b"".join(parts).decode(), True
            parts.append(part)
    return "", False


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()


def _sources() -> Iterator[SourceFileMutationData]:
    mutmut = _mutmut()
    os.chdir("..")  # mutmut's paths are relative to the project, the tests' to its folder `mutants`
    paths = [path for path in mutmut.walk_mutatable_files() if Path("mutants", f"{path}.meta").exists()]
    os.chdir("mutants")
    for path in paths:
        data = SourceFileMutationData(path=path)
        data.meta_path = Path(f"{path}.meta")
        data.load()
        yield data


def _line_of(data: SourceFileMutationData, names: list[str]) -> str:
    verdicts = Counter(data.exit_code_by_key[name] for name in names)
    took_s = sum(data.durations_by_key[name] for name in names)
    return (
        f"{data.path}: {len(names)} mutants, {verdicts[SURVIVED]} live, {verdicts[NO_TESTS]} untested, {took_s:.0f} s"
    )


def _say(text: str) -> None:
    with Path("../judged.log").open("a", encoding="utf-8") as log:  # pytest captures what is printed
        log.write(text + "\n")


def main() -> None:
    """Make mutants, judge those named by patterns, or all, and print what lives."""
    patterns, mutmut = sys.argv[1:], _mutmut()
    settings = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["mutmut"]
    set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(1)
    set_mutant_under_test("")
    judge = Judge(
        patterns,
        lambda tests_s: settings["timeout_multiplier"] * (tests_s + settings["timeout_constant"]),
        float(os.environ.get("MOST_SECONDS", "inf")),
    )
    os.chdir("mutants")
    args = ["-q", "-p", "no:randomly", *settings["pytest_add_cli_args"]]
    if status := pytest.main([*args, *selected(settings["pytest_add_cli_args_test_selection"], patterns)], [judge]):
        sys.exit(int(status))


def _mutmut() -> Any:
    """Return mutmut's command line, which exports nothing; importing it decides how all processes start."""
    return importlib.import_module("mutmut.__main__")


def selected(tests: list[str], patterns: list[str]) -> list[str]:
    """Return the tests that can judge: those of the folders that mirror what the patterns name, if there are some."""
    folders = set()
    for pattern in patterns:
        package, *within = pattern.partition("*")[0].strip(".").split(".")
        while within and not any(test.startswith("/".join([TEST_FOLDERS[package], *within])) for test in tests):
            within.pop()
        folders.add("/".join([TEST_FOLDERS[package], *within]))
    return [test for test in tests if test.startswith(tuple(folders or TEST_FOLDERS.values()))]


if __name__ == "__main__":
    main()
