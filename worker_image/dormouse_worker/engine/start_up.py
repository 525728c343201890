"""What a rank does before anybody asks it for anything: load, and measure."""

from __future__ import annotations

from dormouse_worker.common.ipc import State
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.status import StatusTeller


def load_and_profile(executor: Executor, teller: StatusTeller) -> None:
    """End in PROFILED. Raises what the executor raises."""
    teller.change(State.LOADING)
    executor.init_device()
    if ranks := executor.get_rank_statuses():
        teller.change(State.LOADING, ranks=ranks)
    executor.load_model()
    info, made = executor.get_model_info(), executor.convert_tokenizer()
    teller.note(model=info, tokenizer_path=made.path, tokenizer_problem=made.problem)
    executor.determine_num_available_blocks()
    report, ranks = executor.get_memory_report(), executor.get_rank_statuses()
    teller.change(State.PROFILED, report=report, ranks=ranks)
