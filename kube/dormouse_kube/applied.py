"""An object as the body of a server-side apply, which is read as YAML. Pure.

JSON is YAML but for two things: YAML has no escapes for halves of characters (so no character beyond U+FFFF may be
escaped), and some characters it takes as escapes only.
"""

from __future__ import annotations

import json
import re

from dormouse_kube.api import Resource

CONTENT_TYPE = "application/apply-patch+yaml; charset=utf-8"  # with the charset the library leaves the body to us
_ESCAPED_ONLY = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def as_yaml(obj: Resource) -> str:
    """Return the object as JSON that every YAML parser reads as the same object."""
    return _ESCAPED_ONLY.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(obj, ensure_ascii=False))
