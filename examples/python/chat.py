"""A chat backend that keeps nothing: what was said is in meerkat, and a page's cursor is the id of its last event."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
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
answering = set[asyncio.Task[None]]()


async def opened(chat: UUID | str) -> AsyncSession:
    return await meerkat.session(str(chat), tools=[order_status])


def answer_calls(session: AsyncSession) -> None:
    """Runs the calls of a chat's tools while a turn of it runs, whether a page reads it or not."""
    task = asyncio.create_task(session.answer_calls(until_idle=True))
    answering.add(task)
    task.add_done_callback(answering.discard)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Answers the calls that an earlier run of this program has left open."""
    async for waiting in meerkat.each(meerkat.approvals):
        if waiting["approval"]["name"] == order_status.name:
            answer_calls(await opened(waiting["session_id"]))
    yield
    await meerkat.aclose()


app = FastAPI(lifespan=lifespan)


@app.post("/chats")
async def create() -> dict[str, str]:
    return {"chat": (await meerkat.session(tools=[order_status])).session_id}


@app.post("/chats/{chat}/messages")
async def say(chat: UUID, message: Message, idempotency_key: Annotated[str, Header()]) -> Any:
    """Starts a turn. The browser makes the key, and sends its message again under it until there is an answer."""
    session, picture = await opened(chat), [image(message.picture)] if message.picture else []
    prompt: list[PromptBlock] = [*picture, {"type": "text", "text": message.prompt}]
    begun = await session.start_turn(prompt, policy="queue", key=idempotency_key)
    answer_calls(session)
    return begun


@app.post("/chats/{chat}/ticket")
async def ticket(chat: UUID, prompt: str = "Write a ticket for this chat.") -> Ticket:
    """Waits for an answer that fits the type."""
    return (await (await opened(chat)).run(prompt, output=Ticket, policy="queue")).completed().output


@app.get("/chats/{chat}/events")
async def events(chat: UUID, last_event_id: Annotated[int, Header()] = 0) -> Response:
    session = await opened(chat)
    # A chat that is not there is an error, and no stream. While meerkat is down, this waits for it.
    await session.read()
    return StreamingResponse(passed_on(session, last_event_id), media_type="text/event-stream")


async def passed_on(session: AsyncSession, after: int) -> AsyncIterator[str]:
    """Passes events on, and continues a turn that was cut off when meerkat was killed."""
    async with aclosing(session.follow(after)) as events:
        async for event in events:
            if event["type"] == "turn_interrupted" and event["reason"] == "process_ended":
                later = (await session.events(since_seq=event["seq"]))["items"]
                # Only the newest turn can be continued. With this key it is once, however many pages follow it.
                if all(one["type"] != "turn_started" for one in later):
                    await session.resume_turn(key=f"after-{event['seq']}")
                    answer_calls(session)
            # A live event has no seq, and does not move the cursor.
            after = event["seq"] if "seq" in event else after
            yield f"id: {after}\ndata: {json.dumps(event)}\n\n"


@app.exception_handler(MeerkatError)
async def refused(_: Request, error: MeerkatError) -> JSONResponse:
    status = error.status or (503 if error.retryable else 400)
    return JSONResponse({"code": error.code, "message": error.message}, status)
