"""Kills the chat backend and meerkat in the middle of a turn, and looks at what a browser sees."""

import base64
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from meerkat import Meerkat, types
from proxy import Proxy, SteadyServer, steady_server

__all__ = ["steady_server"]

PNG = base64.b64encode((Path(__file__).parent / "dot.png").read_bytes()).decode()


class Backend:
    """The backend as a process of its own, and a page of it."""

    def __init__(self, server: SteadyServer):
        self.environment = os.environ | {"MEERKAT_URL": server.url, "MEERKAT_TOKEN": server.token}
        # Its address stays when the backend starts again.
        self.front = Proxy()
        self.page = httpx.Client(base_url=self.front.url, timeout=60)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "chat:app", "--host", "127.0.0.1", "--port", "0"]
        folder = Path(__file__).parent
        self.process = subprocess.Popen(command, cwd=folder, env=self.environment, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"running on http://(127\.0\.0\.1:\d+)", line):
                self.front.address = found[1]
                # What it says later must not fill the pipe.
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return
        raise RuntimeError("the backend ended before it listened:\n" + "".join(said))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def post(self, path: str, key: str = "", **body: Any) -> Any:
        return self.page.post(path, json=body, headers={"Idempotency-Key": key}).raise_for_status().json()

    def follow(self, chat: str) -> Iterator[types.AnyEvent]:
        """What a browser's `EventSource` does."""
        after, end = "0", time.monotonic() + 60
        while time.monotonic() < end:
            try:
                with self.page.stream("GET", f"/chats/{chat}/events", headers={"Last-Event-ID": after}) as stream:
                    for line in stream.iter_lines():
                        if line.startswith("id: "):
                            after = line.removeprefix("id: ")
                        if line.startswith("data: "):
                            yield json.loads(line.removeprefix("data: "))
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError("the turn did not end in a minute")


@pytest.fixture
def meerkat(steady_server: SteadyServer) -> Iterator[Meerkat]:
    with Meerkat(steady_server.url, steady_server.token) as meerkat:
        yield meerkat


@pytest.fixture
def backend(steady_server: SteadyServer) -> Iterator[Backend]:
    backend = Backend(steady_server)
    yield backend
    backend.kill()
    backend.front.close()


def start_when_missed(server: SteadyServer) -> threading.Thread:
    """Starts a killed server as soon as the backend has called it in vain."""

    def start() -> None:
        assert server.front.missed.wait(timeout=60)
        server.start()

    thread = threading.Thread(target=start)
    thread.start()
    return thread


@pytest.mark.parametrize("killed", ["meerkat", "backend", "both"])
def test_a_page_sees_every_event_once_though_processes_are_killed(
    meerkat: Meerkat, steady_server: SteadyServer, backend: Backend, killed: str
) -> None:
    chat = backend.post("/chats")["chat"]
    prompt = f'@say Before. @call test_sleep {{"ms":{1 if killed == "backend" else 600_000}}} @say After.'
    begun = backend.post(f"/chats/{chat}/messages", "the first", prompt=prompt)
    seen, is_killed = [], False
    for event in backend.follow(chat):
        if "seq" in event:
            seen.append(event)
        if event["type"] == "tool_started" and not is_killed:
            is_killed = True
            if killed != "meerkat":
                backend.kill()
            if killed != "backend":
                steady_server.kill()
                steady_server.start()
            if killed != "meerkat":
                backend.start()
        if event["type"] == "turn_completed":
            break

    assert is_killed
    session = meerkat.session(chat)
    assert seen == session.events()["items"]
    kinds = [event["type"] for event in seen]
    assert kinds.count("turn_started") == (1 if killed == "backend" else 2)
    messages = [event for event in seen if event["type"] == "assistant_message"]
    texts = [block.get("text") for event in messages for block in event["blocks"] if block["type"] == "text"]
    assert texts == ["Before.", "After."]
    # The same message again is the same turn, and a second page does not continue it a second time.
    assert backend.post(f"/chats/{chat}/messages", "the first", prompt=prompt) == begun
    for expected, event in zip(seen, backend.follow(chat), strict=False):
        assert event == expected
    assert session.read()["last_seq"] == seen[-1]["seq"]


def test_a_turn_is_continued_before_the_messages_that_waited(steady_server: SteadyServer, backend: Backend) -> None:
    chat = backend.post("/chats")["chat"]
    sleep = '@call test_sleep {"ms":600000}'
    backend.post(f"/chats/{chat}/messages", "one", prompt=f"{sleep} @step {sleep} @say First.")
    backend.post(f"/chats/{chat}/messages", "two", prompt='@call order_status {"number":"17"} @echo last_result')
    seen: list[Any] = []
    # Twice: the turn that continues it is cut off, too, while the message still waits.
    for event in backend.follow(chat):
        seen.append(event)
        kinds = [one["type"] for one in seen]
        if event["type"] == "tool_started":
            steady_server.kill()
            steady_server.start()
        if kinds.count("turn_completed") == 2:
            break
    blocks = [block for one in seen if one["type"] == "assistant_message" for block in one["blocks"]]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    assert texts == ["First.", "last_result: It arrives on Friday."]
    assert [one["type"] for one in seen].count("turn_interrupted") == 2


def test_a_tool_a_picture_and_a_ticket(meerkat: Meerkat, backend: Backend) -> None:
    chat = backend.post("/chats")["chat"]
    prompt = '@call order_status {"number":"17"} @echo last_result @echo blocks'
    backend.post(f"/chats/{chat}/messages", "one", prompt=prompt, picture=PNG)
    said = [event for event in ended(backend, chat) if event["type"] == "assistant_message"]
    texts = [block.get("text") for block in said[-1]["blocks"]]
    assert texts[0] == "last_result: It arrives on Friday."
    assert str(texts[1]).startswith("blocks: [Image 1: image/png, ")
    answer = backend.page.post(f"/chats/{chat}/ticket", params={"prompt": '@json {"subject":"Late","urgency":"low"}'})
    assert answer.json() == {"subject": "Late", "urgency": "low"}


def ended(backend: Backend, chat: str) -> list[types.AnyEvent]:
    events = []
    for event in backend.follow(chat):
        events.append(event)
        if event["type"] in ("turn_completed", "turn_failed"):
            break
    return events


def test_a_backend_that_starts_again_answers_the_call_that_waits(
    meerkat: Meerkat, steady_server: SteadyServer, backend: Backend
) -> None:
    chat = backend.post("/chats")["chat"]
    backend.kill()
    session = meerkat.session(chat)
    session.start_turn('@call order_status {"number":"18"} @echo last_result')
    next(event for event in session.follow() if event["type"] == "call_requested")
    steady_server.kill()
    steady_server.start()
    # No page is open, and no message comes: it answers because it starts.
    backend.start()
    next(event for event in session.follow() if event["type"] == "turn_completed")
    kinds = [event["type"] for event in session.events()["items"]]
    assert kinds.count("call_requested") == kinds.count("call_answered") == kinds.count("tool_finished") == 1


def test_a_message_is_sent_again_when_meerkat_is_back(steady_server: SteadyServer, backend: Backend) -> None:
    chat = backend.post("/chats")["chat"]
    steady_server.kill()
    starting = start_when_missed(steady_server)
    # The backend itself sends it again, for a minute.
    assert backend.post(f"/chats/{chat}/messages", "a key", prompt="@say Hello.")["turn"] == 0
    starting.join()


def test_a_picture_that_is_none_is_an_error_of_the_page(backend: Backend) -> None:
    chat = backend.post("/chats")["chat"]
    message = {"prompt": "What is this?", "picture": base64.b64encode(b"a text").decode()}
    refused = backend.page.post(f"/chats/{chat}/messages", json=message, headers={"Idempotency-Key": "k"})
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST")


def test_a_stream_waits_for_meerkat(steady_server: SteadyServer, backend: Backend) -> None:
    chat = backend.post("/chats")["chat"]
    steady_server.kill()
    starting = start_when_missed(steady_server)
    with backend.page.stream("GET", f"/chats/{chat}/events") as stream:
        assert (stream.status_code, next(stream.iter_lines())) == (200, "id: 1")
    starting.join()


def test_a_deleted_chat_ends_its_streams(meerkat: Meerkat, backend: Backend) -> None:
    chat = backend.post("/chats")["chat"]
    with backend.page.stream("GET", f"/chats/{chat}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "id: 1"
        meerkat.session(chat).delete()
        assert any('"session_deleted"' in line for line in list(lines))
    refused = backend.page.get(f"/chats/{chat}/events")
    assert (refused.status_code, refused.json()["code"]) == (404, "SESSION_NOT_FOUND")
