"""docs/reference/worker-protocol.md: the rules that the conformance kit asks, and the capabilities."""

from __future__ import annotations

from collections.abc import Iterator

from dormouse_api.capabilities import MEANINGS
from dormouse_conformance.checks import SECTIONS
from dormouse_conformance.rules import Section
from tools.pages.tables import code, page, table

_INTRODUCTION = """What a worker has to do so that operator and gateways can work with it. [gRPC](grpc.md) has the
messages; here are the rules, each under the name by which `python -m dormouse_conformance` asks it. To try a worker of
your own, start it with the variables that `--environment` prints, and ask it:

```console
$ python -m dormouse_conformance 127.0.0.1:50051
```

Rules marked with a capability bind those only who claim it in `WorkerStatus.capabilities`."""
_CAPABILITIES = "What is not claimed is refused when it is asked for; operator and gateways go by the refusal."


def text() -> str:
    """Return the page."""
    meanings = ((code(name), f"it {meaning}") for name, meaning in MEANINGS.items())
    capabilities = f"## Capabilities\n\n{_CAPABILITIES}\n\n{table(('capability', 'a worker that claims it'), meanings)}"
    return page("Worker protocol", _INTRODUCTION, capabilities, *map(_section, SECTIONS))


def _section(section: Section) -> str:
    return f"## {section.title}\n\n{section.about}\n\n" + "\n".join(_rules(section))


def _rules(section: Section) -> Iterator[str]:
    for rule in section.rules:
        needs = f" [{rule.needs}]" if rule.needs else ""
        yield f"- `{section.full_name(rule)}`{needs} {rule.says}"
