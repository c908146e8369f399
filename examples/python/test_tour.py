"""Runs every part of the tour against a server, and the parts that promise to survive a bad network over one."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tour
from meerkat import TURN_ENDS, Meerkat, MeerkatError
from meerkat_testing import MeerkatServer
from proxy import Proxy

# Three steps, with text before and after a call.
PROMPT = (
    '@think Hm. @say First ä part. @call test_echo {"text":"x"} @say Second. @call test_echo {"text":"y"} @say The end.'
)


@pytest.fixture
def proxy(meerkat_server: MeerkatServer) -> Iterator[Proxy]:
    proxy = Proxy(meerkat_server.address)
    yield proxy
    proxy.close()


@pytest.fixture
def session(meerkat: Meerkat) -> str:
    return tour.create(meerkat, "A tour")


def through(proxy: Proxy, server: MeerkatServer) -> Meerkat:
    meerkat = Meerkat(proxy.url, server.token)
    # The server answers only to its own name, or to one that it was told of.
    meerkat.http.headers["Host"] = server.address
    return meerkat


def stored(meerkat: Meerkat, session: str) -> list[dict]:
    return meerkat.call("GET", f"/v1/sessions/{session}/events", params={"limit": 1000})["items"]


def test_create(meerkat: Meerkat, session: str):
    view = meerkat.call("GET", f"/v1/sessions/{session}")
    assert (view["title"], view["labels"], view["turn_count"]) == ("A tour", {"app": "tour"}, 0)


def test_ask(meerkat: Meerkat, session: str):
    assert tour.ask(meerkat, session, "@say Lima.") == "Lima."


def test_at_once(meerkat: Meerkat, session: str):
    assert "".join(tour.at_once(meerkat, session, "@say All in one request.")) == "All in one request."
    with pytest.raises(MeerkatError) as failed:
        list(tour.at_once(meerkat, session, ""))
    assert failed.value.code == "INVALID_REQUEST"


def test_ask_fails_with_the_turns_error(meerkat: Meerkat, session: str):
    with pytest.raises(MeerkatError) as failed:
        tour.ask(meerkat, session, "@fail rejected")
    assert failed.value.code == "MODEL_REJECTED"


def test_streamed_text_comes_in_pieces(meerkat: Meerkat, session: str):
    # The answer cannot be complete: the model never ends it.
    pieces = tour.streamed(meerkat, session, "@say Wait for it. @stall")
    said = ""
    while said != "Wait for it.":
        said += next(pieces)


def test_a_long_text_is_read_from_its_blob(meerkat: Meerkat, session: str):
    assert len("".join(tour.streamed(meerkat, session, "@chunks 50000 @long 1500000"))) == 1_500_000
    texts = [event["blocks"][0]["text"] for event in stored(meerkat, session) if event["type"] == "assistant_message"]
    assert [text["bytes"] for text in texts] == [1_500_000]
    whole = meerkat.text(session, texts[0])
    assert len(whole) == 1_500_000 and whole.endswith(texts[0]["tail"])


@pytest.mark.parametrize("limit", range(1200, 1900, 150))
def test_no_event_is_lost_or_repeated_wherever_connections_break(
    meerkat: Meerkat, meerkat_server: MeerkatServer, proxy: Proxy, session: str, limit: int
):
    tour.ask(meerkat, session, PROMPT)
    end = meerkat.begin(session, PROMPT)["turn"]
    proxy.limits = itertools.repeat(limit)
    seen = []
    for event in through(proxy, meerkat_server).follow(session):
        if "seq" in event:
            seen.append(event)
        if event["type"] in TURN_ENDS and event["turn"] == end:
            break
    assert seen == stored(meerkat, session)
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert proxy.connections > 2


@pytest.mark.parametrize("limit", range(1200, 1900, 150))
def test_streamed_text_is_whole_wherever_connections_break(
    meerkat_server: MeerkatServer, proxy: Proxy, session: str, limit: int
):
    proxy.limits = itertools.repeat(limit)
    pieces = tour.streamed(through(proxy, meerkat_server), session, PROMPT)
    assert "".join(pieces) == "First ä part.Second.The end."
    assert proxy.connections > 2


def until_again(
    meerkat: Meerkat, proxy: Proxy, session: str, events: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Passes the events of a turn on, breaks the connection at its text, and ends the turn when the text comes again."""
    for event in events:
        yield event
        if event["type"] == "text_delta":
            if proxy.connections == 1:
                proxy.cut()
            else:
                tour.interrupt(meerkat, session, event["turn"])


def test_a_live_event_does_not_move_the_cursor(
    meerkat: Meerkat, meerkat_server: MeerkatServer, proxy: Proxy, session: str
):
    meerkat.begin(session, "@say Wait for it. @stall")
    seen = []
    for event in until_again(meerkat, proxy, session, through(proxy, meerkat_server).follow(session)):
        if "seq" in event:
            seen.append(event)
        if event["type"] in TURN_ENDS:
            break
    assert seen == stored(meerkat, session)
    assert proxy.connections == 2


def test_text_that_comes_again_is_not_shown_again(
    meerkat: Meerkat, meerkat_server: MeerkatServer, proxy: Proxy, session: str
):
    client = through(proxy, meerkat_server)
    events = until_again(meerkat, proxy, session, client.turn(session, "@say Wait for it. @stall"))
    assert "".join(tour.fresh_texts(client, events)) == "Wait for it."
    assert proxy.connections == 2


def test_follow_continues_when_the_server_was_killed(meerkat: Meerkat, meerkat_server: MeerkatServer, session: str):
    kinds = []
    for event in meerkat.turn(session, '@call test_sleep {"ms":600000} @say Done.'):
        # Live events, such as a tool's progress, come only if there is time.
        if "seq" in event:
            kinds.append(event["type"])
        if event["type"] == "tool_started":
            meerkat_server.kill()
            meerkat_server.start()
    assert kinds[-3:] == ["tool_started", "tool_finished", "turn_interrupted"]


def test_reconnect(meerkat: Meerkat, session: str):
    tour.ask(meerkat, session, "@say Hello.")
    assert tour.reconnect(meerkat, session, 2) == [3, 4]
    with pytest.raises(MeerkatError) as refused:
        tour.reconnect(meerkat, session, 99)
    assert refused.value.code == "CURSOR_OUT_OF_RANGE"


def test_retry(meerkat: Meerkat, session: str):
    assert tour.retry(meerkat, session) == 1
    with pytest.raises(MeerkatError) as refused:
        meerkat.begin(session, "@say One.", key="k")
        meerkat.begin(session, "@say Another.", key="k")
    assert refused.value.code == "IDEMPOTENCY_CONFLICT"


def test_a_turn_runs_once_though_its_answers_are_lost(
    meerkat: Meerkat, meerkat_server: MeerkatServer, proxy: Proxy, session: str
):
    proxy.limits = iter([0, 1, 20])
    through(proxy, meerkat_server).begin(session, "@say Once.")
    assert proxy.connections == 4
    assert [event["type"] for event in stored(meerkat, session)].count("turn_started") == 1


@pytest.mark.parametrize(("decision", "outcome"), [("approve", "succeeded"), ("deny", "not_run")])
def test_approve(meerkat: Meerkat, meerkat_server: MeerkatServer, session: str, decision: str, outcome: str):
    prompt = f'@call test_ask {{"name":"{decision}","line":"milk"}} @say Done.'
    assert tour.approve(meerkat, session, prompt, decision) == [outcome]
    assert (meerkat_server.folder / "tools" / decision).exists() == (decision == "approve")


def test_interrupt(meerkat: Meerkat, session: str):
    turn = meerkat.begin(session, "@stall")["turn"]
    assert tour.interrupt(meerkat, session, turn)
    assert [event["reason"] for event in stored(meerkat, session) if event["type"] == "turn_interrupted"] == [
        "requested"
    ]
    assert not tour.interrupt(meerkat, session, turn)


def test_fork(meerkat: Meerkat, session: str):
    tour.ask(meerkat, session, "@say One.")
    tour.ask(meerkat, session, "@say Two.")
    forked = tour.fork(meerkat, session, 0)
    assert meerkat.call("GET", f"/v1/sessions/{forked}")["turn_count"] == 1


def test_search(meerkat: Meerkat, session: str):
    tour.ask(meerkat, session, "@say The capital of Peru is Lima.")
    # A search waits two seconds for what was just said; on a busy machine that may be too short.
    end = time.monotonic() + 60
    while not (found := tour.search(meerkat, "capital of Peru")) and time.monotonic() < end:
        time.sleep(0.05)
    assert "Lima" in found[0]


def test_errors_by_code(meerkat: Meerkat, meerkat_server: MeerkatServer, session: str):
    def code(client: Meerkat, session: str) -> str:
        with pytest.raises(MeerkatError) as refused:
            tour.ask(client, session, "hello")
        return tour.explain(refused.value)

    assert code(meerkat, "01900000-0000-7000-8000-000000000001").startswith("The session was deleted")
    assert code(Meerkat(meerkat_server.url, "a-wrong-token-of-some-length"), session) == "The token is wrong."
    meerkat.begin(session, "@stall")
    assert code(meerkat, session).startswith("A turn is running")


def test_the_tour_runs_as_a_program(meerkat_server: MeerkatServer):
    environment = os.environ | {"MEERKAT_URL": meerkat_server.url, "MEERKAT_TOKEN": meerkat_server.token}
    command = [sys.executable, Path(__file__).with_name("tour.py")]
    lines = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines == [
        "asked: The capital of Peru is Lima.",
        "streamed: One piece after the other.",
        "new since event 4: [5, 6, 7]",
        "turns after a retry: 3",
        "interrupted: True",
        "forked: True",
        "found: The capital of Peru is Lima.",
        "refused: The session was deleted: start another one.",
    ]
