"""What other people's engines are not combined with, refused by name. Pure. The schema refuses the same."""

from __future__ import annotations

from collections.abc import Callable

from dormouse_operator.model import Deployment
from dormouse_operator.model.wanted import OWN_RUNTIME
from dormouse_operator.parse.values import SpecError

# field, what it has to be, whether it is
_RULES: tuple[tuple[str, str, Callable[[Deployment], object]], ...] = (
    ("image", "one with that engine in /opt/vllm", lambda wanted: wanted.image),
    ("engine.device", "cpu", lambda wanted: wanted.engine.device == "cpu"),
    ("task", "auto or generate", lambda wanted: wanted.engine.task in {"auto", "generate"}),
    ("parallelism", "tensor 1 and pipeline 1", lambda wanted: wanted.parallelism.num_ranks == 1),
    ("engine.loadFormat", "auto or dummy", lambda wanted: wanted.engine.load_format != "sharded_state"),
    ("engine.quantization", "none", lambda wanted: wanted.engine.quantization == "none"),
    ("engine.kvCacheDtype", "auto", lambda wanted: wanted.engine.kv_cache_dtype == "auto"),
    ("engine.speculation.method", "off", lambda wanted: wanted.engine.speculation_method == "off"),
    ("engine.enableLora", "false", lambda wanted: not wanted.engine.enable_lora),
    ("engine.kvStore", "left out", lambda wanted: wanted.engine.kv_store is None),
    ("serving.kvEvents", "left out", lambda wanted: not wanted.serving.kv_subscribers),
    ("engine.swapSpace", "0", lambda wanted: not wanted.engine.swap_space_bytes),
    ("engine.compileSizes", "empty", lambda wanted: not wanted.engine.compile_sizes),
    ("engine.prefaultKvCache", "false", lambda wanted: not wanted.engine.prefault_kv_cache),
    ("lifecycle.keepPrefixCache", "false", lambda wanted: not wanted.engine.keep_prefix_cache),
    ("lifecycle.keepEncoderCache", "false", lambda wanted: not wanted.engine.keep_encoder_cache),
    ("lifecycle.spareEngine", "false", lambda wanted: not wanted.lifecycle.spare_engine),
    (
        "lifecycle.sleepLevel",
        "3 where desiredState is Asleep",
        lambda wanted: wanted.lifecycle.desired_state != "Asleep" or wanted.lifecycle.sleep_level == 3,
    ),
    ("rollout.strategy", "Surge", lambda wanted: wanted.rollout.strategy == "Surge"),
)


def require_fitting_runtime(wanted: Deployment) -> None:
    """Raise SpecError naming the first field that another runtime than ours does not go with."""
    if wanted.engine.runtime == OWN_RUNTIME:
        return
    for field, limit, holds in _RULES:
        if not holds(wanted):
            raise SpecError(f"spec.{field} has to be {limit} where spec.engine.runtime is {wanted.engine.runtime}")
