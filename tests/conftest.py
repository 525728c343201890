"""What every test needs: child processes find the packages as the tests themselves do."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("api", "kube", "operator", "gateway", "worker_image", "cli", ".")

os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in PARTS)
