"""What of the engine's settings decides which memory it takes, and what of its cache lasts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from dormouse_worker.common.commands import LIGHTEST


def flag(what: str, metavar: str | None = None, **bounds: Any) -> msgspec.Meta:
    """Return what a flag's help says, `{default}` being the default, and what may be said."""
    return msgspec.Meta(description=what, extra={"metavar": metavar}, **bounds)


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes are in bytes. A size of 0 that is a default stands for what its help names in place of it."""

    gpu_memory_utilization: Annotated[
        float,
        flag(
            "share of the device's memory (cpu: of the memory limit) to use, above 0, at most 1 (default {default})",
            "SHARE",
            gt=0,
            le=1,
        ),
    ] = 0.9
    memory_limit_bytes: Annotated[
        int, flag("cpu: the memory to share (default: the container's limit)", "SIZE", ge=0)
    ] = 0
    device_memory_budget_bytes: Annotated[
        int,
        flag(
            "most to take of the device's memory, where that is less than the share (default: the share alone); "
            "a grant brings its own",
            "SIZE",
            ge=0,
        ),
    ] = 0
    device_memory_reserve_bytes: Annotated[
        int,
        flag(
            "what of the device's share is left to others, where no budget is set (default {default}); "
            "a grant brings its own",
            "SIZE",
            ge=0,
        ),
    ] = 0
    device_memory_sharers: Annotated[
        int,
        flag(
            "processes that divide among them what the reserve leaves (default {default}); a grant brings its own",
            "N",
            ge=1,
            le=256,
        ),
    ] = 1
    expected_device: Annotated[
        str, flag("start on this GPU only, by its UUID (default: on any); a grant brings its own", "UUID")
    ] = ""
    kv_cache_memory_bytes: Annotated[
        int, flag("exact size of the KV cache instead of the measured rest", "SIZE", ge=0)
    ] = 0
    kv_cache_dtype: Annotated[
        Literal["auto", "int8", "fp8"],
        flag(
            "type of the keys and values in the cache: auto = the model's own (default), int8 = 8 bits with a scale "
            "for each head of each token, which is nearly twice as many blocks, fp8 = the same in floats (e4m3)"
        ),
    ] = "auto"
    prefault_kv_cache: Annotated[
        bool,
        flag(
            "cpu: take the memory of the KV cache when it is allocated, not when blocks are first used "
            "(default {default})"
        ),
    ] = False
    block_size: Annotated[
        Literal[1, 2, 4, 8, 16, 32, 64, 128, 256], flag("tokens per block (default {default})", "TOKENS")
    ] = 16
    swap_space_bytes: Annotated[int, flag("host memory for swapped blocks (default {default})", "SIZE", ge=0)] = 0
    enable_prefix_caching: Annotated[
        bool, flag("keep the blocks of ended requests and share equal prefixes (default {default})")
    ] = True
    keep_host_copy: Annotated[
        bool,
        flag("cuda: keep the weights in pinned host memory too, so that a sleep copies nothing (default {default})"),
    ] = True
    kv_store_dir: Annotated[
        str,
        flag(
            "cpu, one rank: where cached prefixes are kept on disk, for after a sleep or for the next process; "
            "workers may share it (default: none is kept)",
            "DIRECTORY",
        ),
    ] = ""
    kv_store_size_bytes: Annotated[
        int, flag("most that the files below kv-store-dir take (default 10 GiB)", "SIZE", ge=1 << 20)
    ] = 10 << 30
    keep_prefix_cache: Annotated[
        bool, flag("at sleep level 1 keep cached prefixes in host memory (default {default})")
    ] = False
    keep_encoder_cache: Annotated[
        bool, flag("at sleep level 1 keep encoded images and sounds in host memory (default {default})")
    ] = False

    def keeps_images(self, level: int) -> bool:
        """Return whether encoded images outlive a sleep at this level."""
        return self.keep_encoder_cache and level == LIGHTEST
