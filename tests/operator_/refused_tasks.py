"""What the API server refuses beside tasks that make no text of text, and which words the refusal has."""

from __future__ import annotations

from typing import Any

TASKS = ("embed", "classify", "score", "transcribe")
FOR_TEXT: list[tuple[dict[str, Any], str]] = [  # what is said, and the field that the refusal names
    ({"engine": {"speculation": {"method": "auto"}}}, "engine.speculation.method"),
    ({"engine": {"enableLora": True}}, "engine.enableLora"),
    ({"engine": {"kvCacheDtype": "int8"}}, "engine.kvCacheDtype"),
    ({"engine": {"loadFormat": "sharded_state"}}, "engine.loadFormat sharded_state"),
    ({"engine": {"compileSizes": [8]}}, "engine.compileSizes"),
    ({"parallelism": {"tensor": 2}}, "parallelism"),
    ({"parallelism": {"pipeline": 2}}, "parallelism"),
]
REFUSED_TASKS = [
    *(
        ({**spec, "task": task}, [f"spec.{field} needs a model that makes text of text, and spec.task is another"])
        for task in TASKS
        for spec, field in FOR_TEXT
    ),
    *(
        (
            {"engine": {"quantization": "int8"}, "task": task},
            ["spec.engine.quantization needs a spec.task of generate or transcribe"],
        )
        for task in TASKS
        if task != "transcribe"
    ),
]
