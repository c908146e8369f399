"""What a client does with meerkat, one function each.

With a server's address and token in MEERKAT_URL and MEERKAT_TOKEN: python examples/python/tour.py
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from httpx_sse import EventSource, connect_sse

from meerkat import Meerkat, MeerkatError, check


def create(meerkat: Meerkat, title: str) -> str:
    """Creates a session and returns its id."""
    created = meerkat.call("POST", "/v1/sessions", json={"title": title, "labels": {"app": "tour"}})
    return created["session_id"]


def ask(meerkat: Meerkat, session: str, prompt: str) -> str:
    """Runs a turn, waits for its end, and returns the answer. A turn that failed is an answer too: it has an error."""
    result = meerkat.call("POST", f"/v1/sessions/{session}/turns", json={"prompt": prompt}, timeout=None)
    if result["status"] != "completed":
        raise MeerkatError(result["error"])
    return result["text"]


def streamed(meerkat: Meerkat, session: str, prompt: str) -> Iterator[str]:
    """Runs a turn and yields its text while the model says it. After a lost connection it continues in the middle of
    the sentence."""
    yield from fresh_texts(meerkat, meerkat.turn(session, prompt))


def fresh_texts(meerkat: Meerkat, events: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yields each text in the events once."""
    shown: dict[tuple[int, int], int] = {}
    for event in events:
        for block, offset, text in texts(meerkat, event):
            place = (event["step"], block)
            known = shown.get(place, 0)
            # A follower that comes back gets the block from its beginning: only the rest of it is new.
            fresh = text.encode()[known - offset :] if offset <= known else b""
            shown[place] = known + len(fresh)
            if fresh:
                yield fresh.decode()


def at_once(meerkat: Meerkat, session: str, prompt: str) -> Iterator[str]:
    """Runs a turn in one request, whose answer is the stream, and yields its text as the model produces it."""
    path = f"/v1/sessions/{session}/turns"
    with connect_sse(meerkat.http, "POST", path, json={"prompt": prompt}) as stream:
        check(stream.response)
        yield from fresh_texts(meerkat, until_result(stream))


def until_result(stream: EventSource) -> Iterator[dict[str, Any]]:
    """Yields the events of a turn. Behind them comes its result, as the answer without a stream would have it."""
    for frame in stream.iter_sse():
        event = frame.json()
        if frame.event == "failure":
            raise MeerkatError(event)
        if frame.event == "result":
            return
        yield event


def texts(meerkat: Meerkat, event: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Yields the texts in an event with their block and their offset in it, in bytes. A live delta is a piece of a
    text; the stored message has the whole of each, even if its deltas were missed."""
    if event["type"] == "text_delta":
        yield event["block"], event["offset"], event["text"]
    elif event["type"] == "assistant_message":
        blocks = [block for block in event["blocks"] if block["type"] in ("text", "reasoning")]
        for number, block in enumerate(blocks):
            if block["type"] == "text":
                yield number, 0, meerkat.text(event["session_id"], block["text"])


def reconnect(meerkat: Meerkat, session: str, cursor: int) -> list[int]:
    """Reads what happened since a cursor that was kept, and returns the new seqs. `follow` would wait for more."""
    page = meerkat.call("GET", f"/v1/sessions/{session}/events", params={"since_seq": cursor})
    return [event["seq"] for event in page["items"]]


def retry(meerkat: Meerkat, session: str) -> int:
    """Sends the same turn twice, as after a lost answer, and returns how many turns the session has."""
    key = str(uuid.uuid4())
    first = meerkat.begin(session, "@say Once.", key=key)
    second = meerkat.begin(session, "@say Once.", key=key)
    assert first == second
    return meerkat.call("GET", f"/v1/sessions/{session}")["turn_count"]


def approve(meerkat: Meerkat, session: str, prompt: str, decision: str) -> list[str]:
    """Runs a turn and decides every call that asks. `attended` says that somebody is there: otherwise a call that asks
    is refused at once."""
    outcomes = []
    for event in meerkat.turn(session, prompt, attended=True):
        if event["type"] == "approval_requested":
            path = f"/v1/sessions/{session}/approvals/{event['call_id']}"
            meerkat.call("POST", path, json={"decision": decision})
        if event["type"] == "tool_finished":
            outcomes.append(event["outcome"])
    return outcomes


def interrupt(meerkat: Meerkat, session: str, turn: int) -> bool:
    """Ends a turn, and returns False if it had ended already."""
    try:
        meerkat.call("POST", f"/v1/sessions/{session}/interrupt", json={"turn": turn})
    except MeerkatError as error:
        if error.code != "SESSION_NOT_RUNNING":
            raise
        return False
    return True


def fork(meerkat: Meerkat, session: str, turn: int) -> str:
    """Makes a session that shares the beginning of another one, up to the end of a turn."""
    return meerkat.call("POST", f"/v1/sessions/{session}/fork", params={"turn": turn})["session_id"]


def search(meerkat: Meerkat, query: str) -> list[str]:
    """Searches the answers in all sessions, and returns the texts that fit best."""
    hits = meerkat.call("GET", "/v1/memory/search", params={"query": query, "role": "assistant", "limit": 3})
    return [hit["text"] for hit in hits["items"]]


def explain(error: MeerkatError) -> str:
    """Chooses what to do by an error's code. The codes are in docs/ERRORS.md."""
    match error.code:
        case "SESSION_NOT_FOUND":
            return "The session was deleted: start another one."
        case "SESSION_BUSY":
            return "A turn is running: wait, interrupt it, or queue this one."
        case "UNAUTHENTICATED":
            return "The token is wrong."
        case _ if error.retryable:
            return "Try again later."
        case _:
            return str(error)


def main() -> None:
    meerkat = Meerkat(os.environ["MEERKAT_URL"], os.environ["MEERKAT_TOKEN"])
    session = create(meerkat, "A tour")
    print("asked:", ask(meerkat, session, "@say The capital of Peru is Lima."))
    print("streamed: ", end="")
    for piece in streamed(meerkat, session, "@say One piece after the other."):
        print(piece, end="", flush=True)
    print("\nnew since event 4:", reconnect(meerkat, session, 4))
    print("turns after a retry:", retry(meerkat, session))
    print("interrupted:", interrupt(meerkat, session, meerkat.begin(session, "@stall")["turn"]))
    print("forked:", fork(meerkat, session, 0) != session)
    print("found:", search(meerkat, "capital of Peru")[0])
    try:
        ask(meerkat, str(uuid.UUID(int=0)), "hello")
    except MeerkatError as error:
        print("refused:", explain(error))


if __name__ == "__main__":
    main()
