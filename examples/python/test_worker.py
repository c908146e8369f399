"""Kills a program, the server, or both while a call runs: the next instance goes on, and the model reads one answer."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meerkat import Meerkat
from meerkat_testing import MeerkatServer
from proxy import SteadyServer

PROMPT = '@say Wait. @call pay_back {"order":"17"} @echo last_result'


def begun(folder: Path, server: MeerkatServer) -> subprocess.Popen[str]:
    environment = os.environ | {"MEERKAT_URL": server.url, "MEERKAT_TOKEN": server.token}
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), PROMPT]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def asked(folder: Path, times: int) -> list[list[str]]:
    """Waits until the bank was asked so many times, and returns who asked, and for what."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        lines = (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []
        if len(lines) >= times:
            return [line.split() for line in lines]
        time.sleep(0.05)
    raise TimeoutError(f"the bank was not asked {times} times in a minute")


@pytest.mark.parametrize("killed", ["program", "server", "both"])
def test_a_killed_program_goes_on(tmp_path: Path, killed: str) -> None:
    server = SteadyServer(tmp_path)
    program = begun(tmp_path, server)
    asked(tmp_path, 1)
    if killed != "server":
        program.kill()
        program.wait()
    if killed != "program":
        server.kill()
        server.start()
    if killed != "server":
        program = begun(tmp_path, server)
        asked(tmp_path, 2)
    (tmp_path / "open").touch()
    assert program.communicate(timeout=60)[0] == "last_result: order 17 is paid back\n"

    # The bank was asked by each instance, always under the same reference.
    instances, references = zip(*asked(tmp_path, 1), strict=True)
    assert len(set(instances)) == len(instances) == (1 if killed == "server" else 2)
    assert len(set(references)) == 1
    # For the model it was one turn, one call and one answer.
    with Meerkat(server.url, server.token) as meerkat:
        sessions = meerkat.list()["items"]
        kinds = [event["type"] for event in meerkat.session(sessions[0]["session_id"]).events()["items"]]
    assert len(sessions) == 1
    expected = ["turn_started", "call_requested", "call_answered", "tool_finished", "turn_completed"]
    assert [kind for kind in kinds if kind in {*expected, "turn_interrupted"}] == expected
    server.kill()


def test_a_turn_that_a_killed_server_cut_off_is_continued(tmp_path: Path) -> None:
    """The server dies while a tool of its own runs: the program sees the turn's end, and goes on with it."""
    server = SteadyServer(tmp_path)
    with Meerkat(server.url, server.token) as meerkat:
        session = meerkat.session()
        turn = session.stream('@call test_sleep {"ms":600000} @say At last.')
        for event in turn:
            if event["type"] == "tool_started":
                server.kill()
                server.start()
        assert turn.result.status == "interrupted"
        assert session.resume().text == "At last."
    server.kill()
