"""What comes from a hub is what a worker can load: the program of the init container, then the worker's own checks."""

from __future__ import annotations

import os
import subprocess
import sys

from dormouse_worker.files.model_files import check_model_files
from tests.worker.hub_server import HubServer


def test_a_downloaded_model_passes_the_checks_of_the_engine(tiny_model, tmp_path):
    command = [sys.executable, "-m", "dormouse_worker.download", "--repo=org/tiny", f"--directory={tmp_path / 'model'}"]
    with HubServer() as hub:
        hub.state.files = {file.name: file.read_bytes() for file in tiny_model.iterdir() if file.is_file()}
        hub.state.token = "secret"
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": "secret",
            "HF_HOME": str(tmp_path / "home"),
        }
        subprocess.run(command, env=environment, check=True, timeout=120)
    loaded, original = check_model_files(tmp_path / "model", "auto"), check_model_files(tiny_model, "auto")
    assert loaded.config == original.config
    assert loaded.tensors.keys() == original.tensors.keys()
