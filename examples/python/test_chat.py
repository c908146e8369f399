"""Kills the chat backend and meerkat in the middle of a turn, and looks at what a browser sees."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from meerkat import Meerkat, MeerkatError, again, check, follow
from meerkat_testing import MeerkatServer


class Backend:
    """The backend as a process of its own."""

    def __init__(self, server: MeerkatServer):
        self.environment = os.environ | {"MEERKAT_URL": server.url, "MEERKAT_TOKEN": server.token}
        self.port = "0"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "chat:app", "--host", "127.0.0.1", "--port", self.port]
        folder = Path(__file__).parent
        self.process = subprocess.Popen(command, cwd=folder, env=self.environment, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"running on (http://127\.0\.0\.1:(\d+))", line):
                self.url, self.port = found[1], found[2]
                return
        raise RuntimeError("the backend ended before it listened")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def backend(meerkat_server: MeerkatServer) -> Iterator[Backend]:
    backend = Backend(meerkat_server)
    yield backend
    backend.kill()


def say(page: httpx.Client, chat: str, prompt: str, key: str) -> dict:
    answer = page.post(f"/chats/{chat}/messages", json={"prompt": prompt}, headers={"Idempotency-Key": key})
    check(answer)
    return answer.json()


@pytest.mark.parametrize("killed", ["meerkat", "backend", "both"])
def test_a_page_sees_every_event_once_though_processes_are_killed(
    meerkat: Meerkat, meerkat_server: MeerkatServer, backend: Backend, killed: str
):
    page = httpx.Client(base_url=backend.url, timeout=60)
    chat = page.post("/chats").json()["session_id"]
    prompt = f'@say Before. @call test_sleep {{"ms":{1 if killed == "backend" else 600_000}}} @say After.'
    begun = say(page, chat, prompt, "the first message")
    seen, is_killed = [], False
    for event in follow(page, f"/chats/{chat}/events"):
        if "seq" in event:
            seen.append(event)
        if event["type"] == "tool_started" and not is_killed:
            is_killed = True
            if killed != "meerkat":
                backend.kill()
            if killed != "backend":
                meerkat_server.kill()
                meerkat_server.start()
            if killed != "meerkat":
                backend.start()
        if event["type"] == "turn_completed":
            break

    assert is_killed
    assert seen == meerkat.call("GET", f"/v1/sessions/{chat}/events")["items"]
    kinds = [event["type"] for event in seen]
    assert kinds.count("turn_started") == (1 if killed == "backend" else 2)
    texts = [block["text"] for event in seen for block in event.get("blocks", []) if block["type"] == "text"]
    assert texts == ["Before.", "After."]
    # The same message again is the same turn, and a second page does not continue it a second time.
    assert say(page, chat, prompt, "the first message") == begun
    for expected, event in zip(seen, follow(page, f"/chats/{chat}/events"), strict=False):
        assert event == expected
    assert meerkat.call("GET", f"/v1/sessions/{chat}")["last_seq"] == seen[-1]["seq"]


def test_a_message_is_sent_again_when_meerkat_is_back(meerkat_server: MeerkatServer, backend: Backend):
    page = httpx.Client(base_url=backend.url, timeout=60)
    chat = page.post("/chats").json()["session_id"]
    meerkat_server.kill()
    with pytest.raises(MeerkatError) as refused:
        say(page, chat, "@say Hello.", "a key")
    meerkat_server.start()
    assert refused.value.retryable
    assert again(lambda: say(page, chat, "@say Hello.", "a key"))["turn"] == 0


def test_a_stream_waits_for_meerkat(meerkat_server: MeerkatServer, backend: Backend):
    page = httpx.Client(base_url=backend.url, timeout=60)
    chat = page.post("/chats").json()["session_id"]
    meerkat_server.kill()
    with page.stream("GET", f"/chats/{chat}/events") as stream:
        assert stream.status_code == 200
        meerkat_server.start()
        assert next(stream.iter_lines()) == "id: 1"


def test_a_deleted_chat_ends_its_streams(meerkat: Meerkat, backend: Backend):
    page = httpx.Client(base_url=backend.url, timeout=60)
    chat = page.post("/chats").json()["session_id"]
    with page.stream("GET", f"/chats/{chat}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "id: 1"
        meerkat.call("DELETE", f"/v1/sessions/{chat}")
        assert any('"session_deleted"' in line for line in list(lines))
    assert page.get(f"/chats/{chat}/events").json()["code"] == "SESSION_NOT_FOUND"
