"""The command line over a cluster in memory."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dormouse_cli.main import app
from dormouse_cli.testing import world


@pytest.fixture
def dormouse():
    """Run a command against a cluster; the answer has exit_code, stdout and stderr."""

    def invoke(cluster, *args, stdin="", **around):
        runner = CliRunner(env={"KUBECONFIG": None, "DORMOUSE_ADDRESS": None, "DORMOUSE_MODEL": None})
        return runner.invoke(app, list(args), input=stdin, obj=world(cluster, **around))

    return invoke
