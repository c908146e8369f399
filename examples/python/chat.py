"""A chat backend that keeps nothing: what was said is in meerkat, and a browser's cursor is the id of its last event."""

import asyncio
import os
from contextlib import suppress
from typing import Annotated
from uuid import UUID

import httpx
from fastapi import Body, FastAPI, Header, Response
from fastapi.responses import JSONResponse, StreamingResponse
from httpx_sse import aconnect_sse

TOKEN = {"Authorization": f"Bearer {os.environ['MEERKAT_TOKEN']}"}
# Each open page holds a connection, so their number has no limit here.
meerkat = httpx.AsyncClient(base_url=os.environ["MEERKAT_URL"], headers=TOKEN, timeout=60, limits=httpx.Limits())
app = FastAPI()


@app.post("/chats")
async def create() -> Response:
    return passed_on(await meerkat.post("/v1/sessions"))


@app.post("/chats/{chat}/messages")
async def say(chat: UUID, prompt: Annotated[str, Body(embed=True)], idempotency_key: Annotated[str, Header()]):
    """Starts a turn. The browser makes the key, and sends its message again under it until there is an answer."""
    headers = {"Idempotency-Key": idempotency_key, "Prefer": "respond-async"}
    turn = {"prompt": prompt, "policy": "queue"}
    return passed_on(await meerkat.post(f"/v1/sessions/{chat}/turns", json=turn, headers=headers))


@app.get("/chats/{chat}/events")
async def events(chat: UUID, last_event_id: Annotated[int, Header()] = 0) -> Response:
    path = f"/v1/sessions/{chat}"
    # Without meerkat the stream begins when it is back: an `EventSource` gives up at an error.
    with suppress(httpx.TransportError):
        if (found := await meerkat.get(path)).status_code == 404:
            return passed_on(found)
    return StreamingResponse(follow(path, last_event_id), media_type="text/event-stream")


async def follow(path: str, after: int):
    """Passes events on. If meerkat was down, it continues after the last one, and so does a turn that was cut off."""
    is_there = True
    while is_there:
        with suppress(httpx.HTTPError):
            async with aconnect_sse(meerkat, "GET", f"{path}/events", headers={"Last-Event-ID": str(after)}) as stream:
                is_there = stream.response.status_code != 404
                async for frame in stream.aiter_sse():
                    if frame.event == "failure":
                        break
                    event = frame.json()
                    if event["type"] == "turn_interrupted" and event["reason"] == "process_ended":
                        await resume(path, event)
                    # A live event has no seq, and does not move the cursor.
                    after = event.get("seq", after)
                    yield f"id: {after}\ndata: {frame.data}\n\n"
        await asyncio.sleep(0.2)


async def resume(path: str, event: dict) -> None:
    """Continues a turn that was cut off, unless another one came after it."""
    session = (await meerkat.get(path)).raise_for_status().json()
    if session["turn_count"] == event["turn"] + 1:
        # With this key it continues once, however many pages follow it.
        headers = {"Idempotency-Key": f"after-{event['seq']}", "Prefer": "respond-async"}
        answer = await meerkat.post(f"{path}/resume", headers=headers)
        if answer.is_server_error:
            answer.raise_for_status()


def passed_on(answer: httpx.Response) -> Response:
    return Response(answer.content, answer.status_code, media_type="application/json")


@app.exception_handler(httpx.TransportError)
async def unreachable(*_) -> Response:
    return JSONResponse({"code": "UNREACHABLE", "message": "Try again.", "retryable": True, "details": {}}, 503)
