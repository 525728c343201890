"""The command `dormouse`, installed as `kubectl-dormouse`, too. Puts the commands together and nothing else.

Only typer is imported here: `dormouse --help` must not wait for kubernetes, grpc or rich's tables.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dormouse_cli.commands import batch, care, keys, load, look, order, talk
from dormouse_cli.exit_codes import listing

_EXAMPLES = """Examples:

dormouse serve ORG/NAME: serve a model of the hub on this machine

dormouse chat --model NAME: chat with it, or with a model of the cluster

dormouse apply -f FILE --wait: deploy a model, and wait until it serves

dormouse status: what there is; dormouse doctor: what is wrong, and what to do"""

app = typer.Typer(
    name="dormouse",
    help="Manage models that Dormouse serves on Kubernetes, talk to them, or serve one on this machine.",
    epilog=f"{_EXAMPLES}\n\nExit codes:\n\n{listing()}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_LOOK, _ORDER, _TALK, _CARE = "Inspect", "Change", "Talk to a model", "Diagnose"
app.command(rich_help_panel=_LOOK)(look.status)
app.command(rich_help_panel=_LOOK)(look.pool)
app.command(rich_help_panel=_LOOK)(look.adapters)
app.command(rich_help_panel=_LOOK)(look.top)
app.command(rich_help_panel=_LOOK)(look.logs)
app.command(rich_help_panel=_LOOK)(keys.usage)
app.command(rich_help_panel=_LOOK)(keys.cost)
app.command(rich_help_panel=_ORDER)(order.apply)
app.command(rich_help_panel=_ORDER)(order.sleep)
app.command(rich_help_panel=_ORDER)(order.wake)
app.command(rich_help_panel=_ORDER)(order.restart)
app.command(rich_help_panel=_ORDER)(order.rollback)
app.command(rich_help_panel=_ORDER)(order.canary)
app.add_typer(keys.keys, name="keys", rich_help_panel=_ORDER)
app.command(rich_help_panel=_TALK)(talk.generate)
app.command(rich_help_panel=_TALK)(talk.chat)
app.command(rich_help_panel=_TALK)(talk.tokenize)
app.command("model", rich_help_panel=_TALK)(talk.describe)
app.command(rich_help_panel=_TALK)(load.bench)
app.command(rich_help_panel=_TALK)(batch.batch)
app.command(
    rich_help_panel=_TALK,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)(talk.serve)
app.command(rich_help_panel=_CARE)(care.doctor)
app.command(rich_help_panel=_CARE)(care.report)
app.command(rich_help_panel=_CARE)(care.migrate_storage)
app.command(rich_help_panel=_CARE)(care.completion)


def _show_version(wanted: bool) -> None:  # noqa: FBT001  # typer's callback
    if wanted:
        from dormouse_cli.versions import own_version

        sys.stdout.write(f"dormouse {own_version()}\n")
        raise typer.Exit


@app.callback()
def _root(  # the options without a command
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # its callback did all


def main() -> None:
    """Run the command line."""
    app()
