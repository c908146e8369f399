"""A small client of meerkat's REST interface: errors by code, retries that run once, streams that continue."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from httpx_sse import connect_sse

TURN_ENDS = {"turn_completed", "turn_failed", "turn_interrupted", "turn_dequeued"}


class MeerkatError(Exception):
    """A refused request. Branch on `code`; the message is for people and may change."""

    def __init__(self, body: dict[str, Any]):
        super().__init__(f"{body['code']}: {body['message']}")
        self.code, self.retryable, self.details = body["code"], body["retryable"], body["details"]


def check(answer: httpx.Response) -> None:
    """Raises the answer's error, if it is one."""
    if answer.is_success:
        return
    try:
        raise MeerkatError(answer.json() if answer.read() else {})
    except (ValueError, KeyError):
        # Not meerkat's answer: a proxy's, for example.
        answer.raise_for_status()


def again(ask: Callable[[], Any], tries: int = 8) -> Any:
    """Asks until there is an answer, with longer and longer pauses. Only for requests that may be repeated."""
    for attempt in range(tries):
        try:
            return ask()
        except (httpx.TransportError, MeerkatError) as error:
            is_last = attempt + 1 == tries
            if is_last or not getattr(error, "retryable", True):
                raise
            time.sleep(0.1 * 2**attempt)


def follow(http: httpx.Client, path: str, after: int = 0) -> Iterator[dict[str, Any]]:
    """Yields events from a stream. A lost connection continues after the last event, so none is lost and none comes
    twice."""
    while True:
        try:
            with connect_sse(http, "GET", path, headers={"Last-Event-ID": str(after)}) as stream:
                check(stream.response)
                for frame in stream.iter_sse():
                    event = frame.json()
                    if frame.event == "failure":
                        raise MeerkatError(event)
                    # A live event has no seq, and does not move the cursor.
                    after = event.get("seq", after)
                    yield event
        except (httpx.TransportError, MeerkatError) as error:
            if not getattr(error, "retryable", True):
                raise
        time.sleep(0.1)


class Meerkat:
    """A server and its sessions."""

    def __init__(self, url: str, token: str):
        # A stream sends a line every 15 seconds at least, so a minute of silence is a lost connection.
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def call(self, method: str, path: str, **request: Any) -> Any:
        """Returns the answer's JSON, or raises its error."""
        answer = self.http.request(method, path, **request)
        check(answer)
        return answer.json()

    def begin(self, session: str, prompt: str, key: str | None = None, **options: Any) -> dict[str, Any]:
        """Starts a turn and does not wait for its end. If the answer is lost, it asks again under the same key, and
        the turn still runs once."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4()), "Prefer": "respond-async"}
        body = {"prompt": prompt, **options}
        return again(lambda: self.call("POST", f"/v1/sessions/{session}/turns", json=body, headers=headers))

    def follow(self, session: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yields the session's events after a cursor: old ones first, and then new ones as they happen."""
        return follow(self.http, f"/v1/sessions/{session}/events", after)

    def turn(self, session: str, prompt: str, **options: Any) -> Iterator[dict[str, Any]]:
        """Runs a turn and yields its events as they happen; the last one ends it."""
        begun = self.begin(session, prompt, **options)
        for event in self.follow(session, begun["seq"] - 1):
            if event["turn"] == begun["turn"]:
                yield event
                if event["type"] in TURN_ENDS:
                    return

    def text(self, session: str, body: str | dict[str, Any]) -> str:
        """Returns a text of an event. One that is too large for an event is read from its blob."""
        if isinstance(body, str):
            return body
        whole = b""
        while len(whole) < body["bytes"]:
            answer = self.http.get(f"/v1/sessions/{session}/blobs/{body['blob']}", params={"offset": len(whole)})
            check(answer)
            whole += answer.content
        return whole.decode()
