"""The command line that all benchmarks share, and what becomes of their rows."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.merge import merge_results
from bench.models import SHAPES
from bench.peer_env import NoPeer
from bench.results import RESULTS_DIR, Row, print_table, write_results

REPS = 3
MODELS = tuple(SHAPES)
PEERS = ("vllm", "transformers")
WAYS = ("bfloat16", "float32")  # of vLLM to compute; all its other ways were slower in every measurement
OWN_PROCESS = "-own-process"  # behind a way: the engine core in a process of its own
LINE_CHARS = 120
FILES = {
    "canary": "platform",
    "conformance": "platform",
    "from_zero": "startup",
    "keda": "platform",
    "kv_cache": "quantized",
    "openvino_race": "quantized",
    "quantized_peers": "quantized",
    "roles": "sessions",
    "spare": "startup",
    "speech": "tasks",
    "switch": "pools",
    "systemone": "tasks",
    "task_equality": "tasks",
    "tenants": "platform",
    "vectors": "tasks",
    "vllm_worker": "platform",
}  # where the rows of a benchmark go that has no file of its own
IN_PARTS = frozenset(
    {
        "canary",
        "conformance",
        "from_zero",
        "keda",
        "kv_cache",
        "multimodal",
        "openvino_race",
        "platform",
        "pools",
        "quantized",
        "quantized_peers",
        "roles",
        "serve",
        "sessions",
        "spare",
        "speculation",
        "speech",
        "startup",
        "switch",
        "systemone",
        "task_equality",
        "tasks",
        "tenants",
        "vectors",
        "vllm_worker",
    }
)  # in parts: rows that a run does not have stay in the file


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure."""

    models: tuple[str, ...] = MODELS
    reps: int = REPS  # measured repetitions, after one to warm up; the median counts
    count: int | None = None  # requests instead of the workload's own number
    threads: int = 0  # compute threads of both sides; 0 = one for each core
    out: Path | None = None  # where to write; None = bench/results if everything was measured, else nowhere
    peers: tuple[str, ...] = PEERS  # whom to compare with, where a benchmark compares with both
    ways: tuple[str, ...] = WAYS  # of vLLM; the best counts
    picture: bool = False  # draw curves, which takes a sweep: `serve`
    parts: tuple[str, ...] = ()  # of `speculation`, by name; none = all
    seed: int = 0  # of what a campaign of faults does in which order
    merge: bool = False  # put the rows beside those of the file that is there: some models, or one peer, at a time

    @property
    def results_dir(self) -> Path | None:
        """Return where results are written; None for a short run, whose figures compare with nothing."""
        is_full = self.reps >= REPS and self.count is None and self.threads == 0 and set(self.ways) >= set(WAYS)
        is_whole = is_full and (self.merge or (self.models == MODELS and self.peers == PEERS))
        return self.out or (RESULTS_DIR if is_whole else None)


Measure = Callable[[Options, Console], list[Row]]


def make_parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the module's own text."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=list(MODELS), help="shapes to measure (default: all)")
    add("--reps", type=_positive, default=REPS, help=f"measured repetitions, after a warm-up (default {REPS})")
    add("--count", type=_positive, help="requests or streams at once (default: the workload's own number)")
    add("--threads", type=_positive, default=0, help="compute threads of both sides (default: one for each core)")
    add("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="whom to compare with (default: both)")
    ways = [*WAYS, *(way + OWN_PROCESS for way in WAYS)]
    add(
        "--ways",
        nargs="+",
        choices=ways,
        default=list(WAYS),
        help=f"of vLLM; the best counts (default: {' '.join(WAYS)})",
    )
    add("--picture", action="store_true", help="serve: sweep concurrency and rate, too, and draw both")
    add(
        "--merge", action="store_true", help="replace only these rows of the results: some models or one peer at a time"
    )
    add("--parts", nargs="+", default=[], help="speculation, vllm_worker, multimodal: measure these parts only")
    add("--seed", type=int, default=0, help="pools_faults: the order of kills and calls (default 0)")
    add("--out", type=Path, help="folder for the results (default bench/results, and none for a shortened run)")
    return parser


def to_options(flags: argparse.Namespace) -> Options:
    """Return the parsed options."""
    return Options(
        models=tuple(flags.models),
        reps=flags.reps,
        count=flags.count,
        threads=flags.threads,
        out=flags.out,
        peers=tuple(flags.peers),
        ways=tuple(flags.ways),
        picture=flags.picture,
        parts=tuple(flags.parts),
        seed=flags.seed,
        merge=flags.merge,
    )


def run(name: str, measure: Measure, options: Options, console: Console) -> list[Row]:
    """Measure, write and return the rows."""
    console.print(f"[bold]{name}[/bold]")
    rows = measure(options, console)
    if options.results_dir is not None:
        write = merge_results if options.merge or name in IN_PARTS else write_results
        console.print(f"written to {write(FILES.get(name, name), rows, options.results_dir)}", style="dim")
    return rows


def main(name: str, doc: str | None, measure: Measure, argv: Sequence[str] | None = None) -> None:
    """Be the program `python -m bench.NAME`. Ends with a sentence where it needs vLLM, which is not there."""
    end_children_on_sigterm()
    options = to_options(make_parser(f"bench.{name}", doc).parse_args(argv))
    console = make_console()
    try:
        rows = run(name, measure, options, console)
    except NoPeer as reason:
        raise SystemExit(str(reason)) from reason
    print_table(rows, console)


def end_children_on_sigterm() -> None:
    """Let SIGTERM end this program as an exception does: workers, clients and peers end with it."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def make_console() -> Console:
    """Return the console; what is not a terminal gets lines as long as ours."""
    return Console(soft_wrap=True) if sys.stdout.isatty() else Console(width=LINE_CHARS, soft_wrap=True)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)
