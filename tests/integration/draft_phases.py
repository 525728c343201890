"""Where a step with drafts may be cut: what `frail_draft_worker` obeys, without its imports."""

from __future__ import annotations

FRAIL = ("--worker-cls", "tests.integration.frail_draft_worker.FrailDraftWorker")
DIE = "die"
PROPOSING, SCORED = PHASES = ("proposing", "scored")
WHOLE = "whole"  # the front ends, too
