"""The command line over a cluster in memory."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dormouse_cli.main import app
from dormouse_cli.testing import opening


@pytest.fixture
def dormouse():
    """Run a command against a cluster; the answer has exit_code, stdout and stderr."""

    def invoke(cluster, *args, stdin="", error=None):
        return CliRunner(env={"KUBECONFIG": None}).invoke(
            app, list(args), input=stdin, obj=opening(cluster, error=error)
        )

    return invoke
