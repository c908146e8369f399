"""A chat backend that keeps nothing: what was said is in meerkat, and a page's cursor is the id of its last event."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Base64Bytes, BaseModel

from meerkat import AsyncMeerkat, AsyncSession, MeerkatError, image, tool
from meerkat.types import PromptBlock


@tool(effect="read_only")
def order_status(number: Annotated[str, "Such as 17."]) -> str:
    """Status of an order, by its number."""
    return {"17": "It arrives on Friday.", "18": "It was delivered."}.get(number, "There is no such order.")


@dataclass
class Ticket:
    subject: str
    urgency: Literal["low", "high"]


class Message(BaseModel):
    prompt: str
    picture: Base64Bytes | None = None


meerkat = AsyncMeerkat()
answering: dict[UUID, asyncio.Task[None]] = {}


async def opened(chat: UUID) -> AsyncSession:
    """Opens a chat. From now on this program runs the calls of its tools, and first those that wait already."""
    session = await meerkat.session(str(chat), tools=[order_status])
    if chat not in answering or answering[chat].done():
        answering[chat] = asyncio.create_task(session.answer_calls())
    return session


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Answers the calls that an earlier run of this program has left open."""
    for waiting in (await meerkat.approvals())["items"]:
        if waiting["kind"] == "call":
            await opened(UUID(waiting["session_id"]))
    yield
    await meerkat.aclose()


app = FastAPI(lifespan=lifespan)


@app.post("/chats")
async def create() -> dict[str, str]:
    return {"chat": (await meerkat.session(tools=[order_status])).session_id}


@app.post("/chats/{chat}/messages")
async def say(chat: UUID, message: Message, idempotency_key: Annotated[str, Header()]) -> Any:
    """Starts a turn. The browser makes the key, and sends its message again under it until there is an answer."""
    blocks: list[PromptBlock] = [image(message.picture)] if message.picture else []
    blocks.append({"type": "text", "text": message.prompt})
    return await (await opened(chat)).start_turn(blocks, policy="queue", key=idempotency_key)


@app.post("/chats/{chat}/ticket")
async def ticket(chat: UUID, prompt: str = "Write a ticket for this chat.") -> Ticket:
    """Waits for an answer that fits the type."""
    return (await (await opened(chat)).run(prompt, output=Ticket, policy="queue")).completed().output


@app.get("/chats/{chat}/events")
async def events(chat: UUID, last_event_id: Annotated[int, Header()] = 0) -> Response:
    session = await opened(chat)
    try:
        await session.read()
    except MeerkatError as error:
        # Without meerkat the stream begins all the same: a browser gives up at an error.
        if not error.retryable:
            raise
    return StreamingResponse(passed_on(session, last_event_id), media_type="text/event-stream")


async def passed_on(session: AsyncSession, after: int) -> AsyncIterator[str]:
    """Passes events on, and continues a turn that was cut off when meerkat was killed."""
    async for event in session.follow(after):
        if event["type"] == "turn_interrupted" and event["reason"] == "process_ended":
            if (await session.read())["turn_count"] - 1 == event["turn"]:
                # No turn came after it. With this key it continues once, however many pages follow it.
                await session.resume_turn(key=f"after-{event['seq']}")
        # A live event has no seq, and does not move the cursor.
        after = event["seq"] if "seq" in event else after
        yield f"id: {after}\ndata: {json.dumps(event)}\n\n"


@app.exception_handler(MeerkatError)
async def refused(_: Request, error: MeerkatError) -> JSONResponse:
    body = {"code": error.code, "message": error.message, "retryable": error.retryable, "details": error.details}
    return JSONResponse(body, error.status or 503)
