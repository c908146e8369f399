"""What goes over the wire, without the network: errors, retries, the frames of a stream, pieces of a text."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

# A stream sends a line every 15 seconds at least, so a minute of silence is a lost connection.
SILENCE = 60.0
# An operation such as a compaction sends nothing until it is done.
WORK = 600.0
# A stream that lived so long was not refused, though it may have had no events.
ALIVE = 5.0
# Where nothing has ever answered, the server was not started or the address is wrong.
START = 5.0
log = logging.getLogger("meerkat")
# Nothing of the request has reached the server.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class MeerkatError(Exception):
    """A request that was refused, or that got no answer. Branch on `code`; the message is for people and may change.

    The codes are those of docs/ERRORS.md, and four of this package: `UNREACHABLE` if there is no answer,
    `NOT_MEERKAT` if the answer is not from a meerkat server, `NOT_CONFIGURED` if the address or the token is missing,
    and `CLIENT_CLOSED` if this program has closed the client. `status` is the HTTP status, if there was an answer.
    """

    __module__ = "meerkat"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
        status: int | None = None,
    ):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.retryable, self.status = code, message, retryable, status
        self.details = dict(details or {})

    @classmethod
    def of(cls, body: Mapping[str, Any], status: int | None = None) -> MeerkatError:
        """The error that a body of the server says."""
        return cls(body["code"], body["message"], retryable=body["retryable"], details=body["details"], status=status)


def closed() -> MeerkatError:
    """The error of a client that was closed."""
    message = "The client was closed. A turn that runs goes on: run it again under its key, or follow its session."
    return MeerkatError("CLIENT_CLOSED", message)


def settings(url: str | None, token: str | None) -> dict[str, Any]:
    """The arguments of the HTTP client for a server, from the environment if there are none."""
    url = (url or os.environ.get("MEERKAT_URL") or "http://127.0.0.1:7670").rstrip("/")
    token = token or os.environ.get("MEERKAT_TOKEN")
    if not isinstance(token, str | None):
        raise MeerkatError("NOT_CONFIGURED", f"The token is a text, and not of the type {type(token).__name__}.")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise MeerkatError("NOT_CONFIGURED", f"{url!r} is not an address: write it as http://127.0.0.1:7670.")
    if not token:
        raise MeerkatError(
            "NOT_CONFIGURED",
            "There is no token. Type `export MEERKAT_TOKEN=$(meerkat token)` in the server's folder, or pass `token`.",
        )
    if not re.fullmatch(r"[!-~]+", token):
        raise MeerkatError("NOT_CONFIGURED", "The token has characters that no token has, such as a blank or a quote.")
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {token}"},
        "timeout": httpx.Timeout(SILENCE, connect=10),
        # Each stream holds a connection.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        # A proxy of the environment is not for this machine, and would see the token.
        "trust_env": urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"),
    }


def refusal(answer: httpx.Response) -> MeerkatError:
    """The error of an answer whose body was read."""
    status = answer.status_code
    try:
        error = MeerkatError.of(answer.json(), status)
    except (ValueError, KeyError, TypeError):
        return stranger(answer)
    if error.code == "UNAUTHENTICATED":
        url = answer.url.copy_with(path="/", query=None)
        message = f"The token is wrong for {url}. Type `export MEERKAT_TOKEN=$(meerkat token)` in the server's folder."
        return MeerkatError(error.code, message, details=error.details, status=status)
    return error


def stranger(answer: httpx.Response) -> MeerkatError:
    """The error of an answer that no meerkat gave."""
    status, body = answer.status_code, answer.text[:200].strip()
    message = (
        f"{answer.url.copy_with(path='/', query=None)} answered with the status {status}, and not as a meerkat does: "
    )
    message += f"{body!r}. Is there another server, or a proxy that refuses?"
    return MeerkatError("NOT_MEERKAT", message, retryable=status in (429, 502, 503, 504), status=status)


def result_of(answer: httpx.Response) -> Any:
    """The JSON of an answer, or its bytes if it is none."""
    if not answer.is_success:
        raise refusal(answer)
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/html"):
        raise stranger(answer)
    if not kind.startswith("application/json"):
        return answer.content
    try:
        return answer.json()
    except ValueError:
        raise stranger(answer) from None


class Patience:
    """Says how long to wait before a request is sent again, or that it is not sent again."""

    def __init__(self, seconds: float):
        self.seconds, self.pause = seconds, 0.1
        self.since: float | None = time.monotonic()

    def begin(self) -> None:
        """Begins again with the next error: the server has answered."""
        self.pause, self.since = 0.1, None

    def after(
        self, error: httpx.TransportError | MeerkatError, is_repeatable: bool, url: httpx.URL, is_reached: bool = True
    ) -> float:
        """Returns the seconds to wait, or raises the error if the request must not be sent again."""
        seconds = self.seconds
        if isinstance(error, MeerkatError):
            is_passing = error.retryable
            if seconds == math.inf and is_reached and (error.code == "NOT_MEERKAT" or error.status in (401, 403)):
                # What must arrive in the end outlasts a proxy's refusal and a change of the token.
                is_passing = True
                log.warning("sent again: %s", error)
            # Who waits for the running turn says so by the policy.
            may_repeat, ours = is_passing and error.code != "SESSION_BUSY" and is_repeatable, error
        else:
            if isinstance(error, httpx.ConnectError) and not is_reached and seconds != math.inf:
                seconds = min(seconds, START)
            may_repeat = is_repeatable or isinstance(error, UNSENT)
            message = f"{url} does not answer ({error or type(error).__name__}). Is the server running? "
            message += "`meerkat serve --rest` starts one; MEERKAT_URL names another address."
            ours = MeerkatError("UNREACHABLE", message, retryable=True)
        wait = self.pause * random.uniform(0.5, 1)
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        if not may_repeat or now + wait > self.since + seconds:
            raise ours from (None if ours is error else error)
        self.pause = min(self.pause * 2, 5.0)
        return wait


class Frames:
    """Takes the bytes of a stream as they come, and gives the events in it (Server-Sent Events)."""

    def __init__(self) -> None:
        self.rest, self.event, self.data = b"", "", list[str]()

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Yields the events that are complete, and raises the error that ends the stream."""
        # `splitlines` would also split within a JSON string. A CR at the end may be half of CR LF.
        lines = re.split(rb"\r\n|\n|\r(?!\Z)", self.rest + piece)
        self.rest = lines.pop()
        for line in lines:
            field, _, value = line.decode("utf-8", "replace").partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                self.event = value
            elif field == "data":
                self.data.append(value)
            elif not line:
                event, data, self.event, self.data = self.event, "\n".join(self.data), "", []
                if event == "failure":
                    raise MeerkatError.of(json.loads(data))
                if data:
                    yield json.loads(data)


class Shown:
    """Counts how much of each text was shown, in bytes: live pieces may be missed, and may come again."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], int] = {}

    def fresh(self, step: int, block: int, offset: int, text: str) -> str:
        """Returns what lies beyond that which was shown."""
        known = self.known.get((step, block), 0)
        fresh = text.encode()[known - offset :] if offset <= known else b""
        self.known[step, block] = known + len(fresh)
        return fresh.decode()


class Begun:
    """What a client has begun to answer, the newest ten thousand: several streams may see a call, and one runs it."""

    def __init__(self) -> None:
        self.lock, self.keys = threading.Lock(), dict[tuple[str, ...], None]()

    def add(self, *key: str) -> bool:
        """Returns true if it was not begun before."""
        with self.lock:
            if key in self.keys:
                return False
            self.keys[key] = None
            if len(self.keys) > 10_000:
                del self.keys[next(iter(self.keys))]
            return True


def new_key() -> str:
    """An idempotency key."""
    return str(uuid.uuid4())


def quoted(part: object) -> str:
    """A part of a path."""
    return quote(str(part), safe="")


def query_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """The query of a request: what is not `None`."""
    query: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            query |= {f"{name}[{key}]": str(one) for key, one in value.items()}
        elif value is not None:
            query[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return query


def body_of(fields: Mapping[str, Any]) -> bytes:
    """The body of a request: what is not `None`."""
    return json.dumps({key: one for key, one in fields.items() if one is not None}, allow_nan=False).encode()
