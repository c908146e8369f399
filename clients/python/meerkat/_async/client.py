"""A server: its requests, which are sent again where that does no harm, and its sessions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast

import httpx

from .. import types
from .._tasks import AsyncTasks
from .._tools import Tools
from .._wire import (
    ALIVE,
    SILENCE,
    WORK,
    Begun,
    Frames,
    MeerkatError,
    Patience,
    body_of,
    closed,
    new_key,
    query_of,
    refusal,
    result_of,
    settings,
    stranger,
)
from .operations import AsyncServerOperations
from .session import AsyncSession

Item = TypeVar("Item")


class AsyncMeerkat(AsyncServerOperations):
    """A meerkat server. It has a method for each operation on the server, and `session` for those on a session.

    url: The server's address; that of the variable MEERKAT_URL, or http://127.0.0.1:7670.
    token: The server's token; that of the variable MEERKAT_TOKEN.
    patience: The seconds for which a request is sent again while the server does not answer: five at most if nothing
        was ever there.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, patience: float = 60.0):
        self.http = httpx.AsyncClient(**settings(url, token))
        self.patience = patience
        self.tasks = AsyncTasks()
        self.begun = Begun()
        self.is_reached = False

    async def aclose(self) -> None:
        """Closes all connections, and ends what follows a session. Turns go on: they belong to the server."""
        self.tasks.close()
        await self.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def session(
        self,
        session_id: str | None = None,
        *,
        tools: Tools | None = None,
        server_tools: Sequence[str] | None = None,
        key: str | None = None,
        **fields: Unpack[types.SessionFields],
    ) -> AsyncSession:
        """Opens the session with this id, or creates one.

        tools: The functions that its turns may call. A session that is opened has its tools already; this says which
            functions run their calls.
        server_tools: Names of the tools of the server that it may use; all if left out.
        key: With the same key, a program that starts again gets the session that it has created before.
        """
        own = self.tasks.tools(tools or ())
        if session_id is None:
            names = None if server_tools is None else [*server_tools, *(tool.name for tool in own)]
            body = {**fields, "client_tools": [tool.definition for tool in own] or None, "tools": names}
            created: types.SessionCreated = await self._call("POST", "/v1/sessions", body=body, key=key or new_key())
            session_id = created["session_id"]
        elif fields or key or server_tools is not None:
            raise TypeError(
                "a session that exists takes only `tools`; leave out its id to create one with these fields"
            )
        return AsyncSession(self, session_id, own)

    async def each(
        self, operation: Callable[..., Awaitable[types.Page[Item]]], **fields: Any
    ) -> AsyncGenerator[Item, None]:
        """Yields each item of a list, page after page: `meerkat.each(meerkat.list, labels={…})`."""
        while True:
            page = await operation(**fields)
            for item in page["items"]:
                yield item
            if page["next_cursor"] is None:
                return
            fields["cursor"] = page["next_cursor"]

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        key: str | None = None,
        is_waiting: bool = True,
        is_repeatable: bool = False,
        patience: float | None = None,
    ) -> Any:
        """Sends a request and returns its answer's JSON, or raises its error."""
        headers = {"Idempotency-Key": key} if key else {}
        if not is_waiting:
            headers["Prefer"] = "respond-async"
        if body is not None:
            headers["Content-Type"], content = "application/json", body_of(body)
        wait = (query or {}).get("wait_ms") or 0
        # Other requests may send nothing until their work is done.
        is_quick = method == "GET" or key or patience
        timeout = httpx.Timeout(SILENCE + wait / 1000 if is_quick else WORK, connect=10)
        again = Patience(self.patience if patience is None else patience)
        while not self.http.is_closed:
            try:
                returned = result_of(
                    await self.http.request(
                        method, path, params=query_of(query or {}), content=content, headers=headers, timeout=timeout
                    )
                )
                self.is_reached = True
                return returned
            except (httpx.TransportError, MeerkatError) as error:
                may_repeat = is_repeatable or key is not None
                await self.tasks.sleep(again.after(error, may_repeat, self.http.base_url, self.is_reached))
        raise closed()

    async def _stream(
        self, path: str, after: int, patience: float | None = None
    ) -> AsyncGenerator[types.AnyEvent, None]:
        """Yields the events after a cursor. Over lost connections no stored event is lost, and none comes twice."""
        again = Patience(self.patience if patience is None else patience)
        while not self.http.is_closed:
            try:
                headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
                async with self.http.stream("GET", path, headers=headers) as answer:
                    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                        await answer.aread()
                        raise stranger(answer) if answer.is_success else refusal(answer)
                    self.is_reached, opened, frames = True, time.monotonic(), Frames()
                    async for piece in answer.aiter_bytes():
                        if time.monotonic() > opened + ALIVE:
                            again.begin()
                        for event in frames.feed(piece):
                            # A live event has no seq, and does not move the cursor.
                            if "seq" in event:
                                after = event["seq"]
                                again.begin()
                            yield cast(types.AnyEvent, event)
                            if event["type"] == "session_deleted":
                                return
                        if self.http.is_closed:
                            return
                raise httpx.RemoteProtocolError("the stream ended early")
            except (httpx.TransportError, MeerkatError) as error:
                await self.tasks.sleep(again.after(error, True, self.http.base_url, self.is_reached))
