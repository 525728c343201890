"""The pod that reserves a slot's GPUs says which they are, and keeps them until it is ended by force."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from dormouse_worker.reserve import main


def test_it_writes_what_the_device_plugin_told_it(tmp_path):
    words = tmp_path / "words"
    assert main(["tell", "VISIBLE"], {"VISIBLE": "GPU-1,GPU-2"}, words) == 0
    assert words.read_text() == "GPU-1,GPU-2"
    assert main(["tell", "VISIBLE"], {}, words) == 0
    assert words.read_text() == ""


def test_another_word_is_refused_with_what_there_is(capsys):
    assert main(["keep"]) == 2
    assert capsys.readouterr().err == "usage: reserve tell VARIABLE | reserve hold\n"


def test_it_holds_on_though_it_is_asked_to_end():
    ready = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    program = f"import signal; from dormouse_worker.reserve import main; {ready}; main(['hold'])"
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    holder.stdout.readline()
    ended = os.pidfd_open(holder.pid)
    holder.send_signal(signal.SIGTERM)
    assert not select.select([ended], [], [], 0.2)[0]
    holder.kill()
    assert holder.wait(90) == -signal.SIGKILL
    os.close(ended)
    holder.stdout.close()
