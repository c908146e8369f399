"""What a program does with meerkat, one function each.

With a server's address and token in MEERKAT_URL and MEERKAT_TOKEN: python examples/python/tour.py
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from meerkat import Call, Meerkat, MeerkatError, Session, image, tool, types


def create(meerkat: Meerkat, title: str) -> Session:
    """Creates a session."""
    return meerkat.session(title=title, labels={"app": "tour"})


def ask(session: Session, prompt: str) -> str:
    """Runs a turn to its end, and returns the answer. A turn that did not complete has an error, which is raised."""
    return session.run(prompt).completed().text


def streamed(session: Session, prompt: str) -> Iterator[str]:
    """Runs a turn and yields its text while the model says it. After a lost connection it continues in the middle of
    the sentence."""
    yield from session.stream(prompt).texts()


def kinds(session: Session, prompt: str) -> list[str]:
    """Runs a turn and looks at its events; with the last one comes the result."""
    turn = session.stream(prompt)
    seen: list[str] = [event["type"] for event in turn if "seq" in event]
    print("cost:", turn.result.cost, "tokens:", turn.result.usage["output_tokens"])
    return seen


@tool(effect="read_only")
def weather(
    city: Annotated[str, "The city, in English."], unit: Literal["celsius", "fahrenheit"] = "celsius"
) -> dict[str, Any]:
    """Weather of a city, now."""
    return {"city": city, "degrees": 21 if unit == "celsius" else 70}


def with_a_tool(session: Session, prompt: str) -> str:
    """Runs a turn whose model may call a function of this program."""
    return session.run(prompt, tools=[weather]).completed().text


@tool
def remember(note: str, call: Call) -> str:
    """Keeps a note."""
    return f"kept {note!r} under {call.call_id}"


@dataclass
class Place:
    city: str
    people: int


def place(session: Session, prompt: str) -> Place:
    """Runs a turn whose answer fits a type."""
    return session.run(prompt, output=Place).completed().output


def describe(session: Session, picture: str | Path | bytes, prompt: str) -> str:
    """Shows the model a picture."""
    return session.run([image(picture), prompt]).completed().text


def carefully(session: Session, prompt: str) -> str:
    """Says how the model is asked, and how much the turn may do."""
    options: types.ModelOptions = {"temperature": 0.2, "max_output_tokens": 500}
    result = session.run(prompt, options=options, budgets={"steps": 10})
    return result.completed().text


def approve(session: Session, prompt: str, decision: types.Decision) -> list[str]:
    """Runs a turn and decides every call that asks."""

    def decide(event: types.ApprovalRequestedEvent) -> types.Decision:
        print("may it?", event["name"], event.get("preview") or event["arguments"])
        return decision

    turn = session.stream(prompt, on_approval=decide)
    return [event["outcome"] for event in turn if event["type"] == "tool_finished"]


def steer(session: Session, prompt: str) -> int:
    """Adds a text to the turn that runs, and returns its number."""
    return session.start_turn(prompt, policy="steer")["turn"]


def interrupt(session: Session, turn: int | None) -> bool:
    """Ends a turn, and returns False if it had ended already."""
    try:
        session.interrupt(turn=turn)
    except MeerkatError as error:
        if error.code != "SESSION_NOT_RUNNING":
            raise
        return False
    return True


def reconnect(session: Session, cursor: int) -> list[int]:
    """Reads what happened since a cursor that was kept, and returns the new seqs. `follow` would wait for more."""
    return [event["seq"] for event in session.events(since_seq=cursor)["items"]]


def retry(session: Session) -> int:
    """Runs the same turn twice, as after a crash of this program, and returns how many turns the session has."""
    key = str(uuid.uuid4())
    first = session.run("@say Once.", key=key)
    second = session.run("@say Once.", key=key)
    assert first == second
    return session.read()["turn_count"]


def continued(meerkat: Meerkat) -> str:
    """Gives a session what was said elsewhere."""
    said: list[types.GivenMessage] = [
        {"role": "user", "content": "Where is the logo?"},
        {"role": "assistant", "content": "It is images/logo.svg."},
    ]
    session = meerkat.session(history=said)
    return session.run("@echo messages").completed().text


def fork(meerkat: Meerkat, session: Session, turn: int) -> Session:
    """Makes a session that shares the beginning of another one, up to the end of a turn."""
    return meerkat.session(session.fork(turn=turn)["session_id"])


def search(meerkat: Meerkat, query: str) -> list[str]:
    """Searches the answers in all sessions, and returns the texts that fit best."""
    hits = meerkat.search_memory(query, role="assistant", limit=3)
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
        case "UNREACHABLE":
            return "The server does not answer."
        case _ if error.retryable:
            return "Try again later."
        case _:
            return str(error)


def main() -> None:
    meerkat = Meerkat()
    session = create(meerkat, "A tour")
    print("asked:", ask(session, "@say The capital of Peru is Lima."))
    print("streamed: ", end="")
    for piece in streamed(session, "@say One piece after the other."):
        print(piece, end="", flush=True)
    print()
    print("events:", kinds(session, "@say Hi. @usage in=12 out=2"))
    print("tool:", with_a_tool(session, '@call weather {"city":"Oslo"} @echo last_result'))
    print("place:", place(session, '@json {"city":"Bern","people":134591}'))
    print("new since event 12:", reconnect(session, 12))
    print("turns after a retry:", retry(session))
    print("interrupted:", interrupt(session, session.start_turn("@stall")["turn"]))
    print("forked:", fork(meerkat, session, 0).session_id != session.session_id)
    print("continued:", continued(meerkat))
    print("found:", search(meerkat, "capital of Peru")[0])
    try:
        ask(meerkat.session(str(uuid.UUID(int=0))), "hello")
    except MeerkatError as error:
        print("refused:", explain(error))


if __name__ == "__main__":
    main()
