"""What a rank imports of torch and transformers, seen in processes of their own."""

import subprocess
import sys

from dormouse_worker.model.testing import write_tiny_model

LEFT_OUT = (
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.nn.attention.flex_attention",
    "torch.nn.attention.varlen",
    "torchao",
)
SERVE = """
import os, sys
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings

left_out = sys.argv[1].split(",")
for model in sys.argv[2:]:
    sizes = {"kv_cache_memory_bytes": 1 << 20, "block_size": 4, "threads": 1}
    settings = EngineSettings(model=model, engine_runtime="torch", **sizes)
    executor = SingleProcessExecutor(settings, os.environ, Host())
    executor.init_device()
    executor.load_model()
    executor.initialize_cache(*executor.determine_num_available_blocks())
    print(*(name for name in left_out if name in sys.modules))
"""
KNOWS_QUANTIZED = """
from transformers.utils import is_torchao_available
print(is_torchao_available())
"""
QUANTIZED = """
from dormouse_worker.executor.worker.wrapper import WorkerWrapper
from dormouse_worker.common.settings import EngineSettings

wrapper = WorkerWrapper(EngineSettings(model="/nowhere"), 0, "dormouse_worker.executor.worker.cpu_worker.CpuWorker")
wrapper.init_worker(is_quantized=True)
"""
COMPILE = """
import torch
from dormouse_worker.model.slim_imports import without_compiler
function = lambda: None
with without_compiler():
    import torch._dynamo
    assert torch._dynamo.disallow_in_graph(function) is torch.compiler.disable(function) is function
    assert torch.compiler.disable(recursive=False)(function) is function
assert "torch._dynamo" not in sys.modules and "_dynamo" not in vars(torch)
with without_compiler():
    import torch._dynamo.config
assert torch._dynamo.config.recompile_limit == sys.modules["torch._dynamo"].config.recompile_limit > 0
with without_compiler():
    assert torch._dynamo.disable(function) is not function
print(int(torch.compile(lambda x: x + 1, backend="eager")(torch.tensor(6))))
"""


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_engine_that_serves_has_not_imported_what_it_does_not_use(tmp_path):
    """And yet whoever needs the compiler, a worker class of a user's own perhaps, gets it, and it works."""
    models = [write_tiny_model(tmp_path / architecture, architecture) for architecture in ("llama", "gemma2")]
    told = run(SERVE + KNOWS_QUANTIZED + COMPILE, ",".join(LEFT_OUT), *models)
    assert told == [*[""] * len(models), "False", "7"]


def test_a_quantized_model_has_all_of_transformers():
    assert run(QUANTIZED + KNOWS_QUANTIZED) == ["True"]
