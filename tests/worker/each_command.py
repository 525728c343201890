"""One of every command, in the order of their union."""

from dormouse_worker.common.commands import (
    AbortAll,
    AddLora,
    CheckHealth,
    InitializeCache,
    ListLoras,
    PinLora,
    PrepareWakeUp,
    RemoveLora,
    ResetMultimodalCache,
    ResetPrefixCache,
    SaveShardedState,
    Shutdown,
    Sleep,
    StartProfile,
    StopProfile,
    WakeUp,
)

EACH_COMMAND = (
    InitializeCache(10, 2),
    AbortAll(),
    Sleep(1, ("kv_cache",)),
    PrepareWakeUp(("kv_cache",)),
    WakeUp(("weights",)),
    ResetPrefixCache(),
    ResetMultimodalCache(),
    SaveShardedState("/shards"),
    StartProfile("/traces"),
    StopProfile(),
    CheckHealth(),
    AddLora("/adapters/one", "digest"),
    RemoveLora("digest"),
    PinLora("digest", is_pinned=False),
    ListLoras(),
    Shutdown(),
)
