"""Answers to calls and approvals arrive, whatever the program and the network do: a turn does not wait in vain."""

import asyncio
import functools
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from meerkat import AsyncMeerkat, Meerkat, MeerkatError, Session, tool
from meerkat_testing import TOKEN, MeerkatServer
from proxy import SteadyServer, steady_server

__all__ = ["steady_server"]

HTML = {"content-type": "text/html"}


def outcomes(session: Session) -> list[tuple[str, str]]:
    events = session.events(limit=1000)["items"]
    return sorted((event["outcome"], str(event["output"])) for event in events if event["type"] == "tool_finished")


def between(meerkat: Meerkat, answer: Callable[[httpx.Request], httpx.Response | None]) -> None:
    """From now on `answer` answers the client's requests, and the server those for which it returns `None`."""
    server = httpx.HTTPTransport()

    class Between(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            given = answer(request)
            return server.handle_request(request) if given is None else given

    meerkat.http = httpx.Client(base_url=meerkat.http.base_url, headers=meerkat.http.headers, transport=Between())


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_answer_that_a_proxy_refuses_is_sent_again(meerkat: Meerkat, status: int) -> None:
    runs, refusals = [], iter([httpx.Response(status, headers=HTML, text="<html>No") for _ in range(2)])

    def pay() -> str:
        """Pays."""
        runs.append("paid")
        return "paid"

    session = meerkat.session(tools=[pay])
    between(meerkat, lambda request: next(refusals, None) if "/calls/" in request.url.path else None)
    assert session.run("@call pay @echo last_result").text == "last_result: paid"
    assert next(refusals, None) is None and runs == ["paid"]
    assert outcomes(session) == [("succeeded", "paid")]


def test_an_answer_that_is_too_large_says_that_the_tool_ran(meerkat: Meerkat) -> None:
    def dump() -> str:
        """Returns more than a request may have."""
        return "x" * 34_000_000

    session = meerkat.session(tools=[dump])
    assert session.run("@call dump @say Done.").text == "Done."
    [(outcome, output)] = outcomes(session)
    assert outcome == "failed" and output.startswith("The tool ran; its answer was refused: ")


@pytest.mark.parametrize("codes", [["INVALID_REQUEST"], ["INVALID_REQUEST", "PAYLOAD_TOO_LARGE"]])
def test_what_is_sent_in_place_of_a_refused_answer_may_be_refused_too(meerkat: Meerkat, codes: list[str]) -> None:
    def gives() -> str:
        """Gives something."""
        return "something"

    bodies = [{"code": code, "message": f"No {code}.", "retryable": False, "details": {}} for code in codes]
    refusals = iter([httpx.Response(400, json=body) for body in bodies])
    session = meerkat.session(tools=[gives])
    between(meerkat, lambda request: next(refusals, None) if "/calls/" in request.url.path else None)
    assert session.run("@call gives @say Done.").text == "Done."
    said = "No INVALID_REQUEST." if len(codes) == 1 else "PAYLOAD_TOO_LARGE"
    assert outcomes(session) == [("failed", f"The tool ran; its answer was refused: {said}")]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(3), "3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(), "StopIteration"),
        (ValueError("\udc80 is no name"), "? is no name"),
        (ValueError("x" * 3_000_000), "x" * 8000),
    ],
)
def test_a_tool_that_ends_in_any_way_is_answered(meerkat: Meerkat, error: BaseException, said: str) -> None:
    def ends() -> str:
        """Ends without an answer."""
        raise error

    session = meerkat.session(tools=[ends])
    assert session.run("@call ends @say Done.").text == "Done."
    assert outcomes(session) == [("failed", said)]


def test_async_tools_that_end_in_any_way_are_answered(meerkat_server: MeerkatServer, meerkat: Meerkat) -> None:
    async def waits() -> str:
        """Waits for a task that is cancelled."""
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task
        return "never"

    async def exits() -> str:
        """Ends the program."""
        sys.exit(3)

    def exits_in_a_thread() -> str:
        """Ends the program."""
        sys.exit(4)

    async def main() -> Session:
        async with AsyncMeerkat(meerkat_server.url, TOKEN) as client:
            session = await client.session(tools=[waits, exits, exits_in_a_thread])
            await session.run("@call waits @call exits @call exits_in_a_thread @say Done.")
            return meerkat.session(session.session_id)

    assert outcomes(asyncio.run(main())) == [("failed", "3"), ("failed", "4"), ("failed", "CancelledError")]


def test_a_program_that_ends_leaves_its_call_for_the_next(meerkat_server: MeerkatServer, meerkat: Meerkat) -> None:
    async def main() -> Session:
        is_running = asyncio.Event()

        async def waits() -> str:
            """Waits until the program ends."""
            is_running.set()
            await asyncio.sleep(600)
            return "never"

        client = AsyncMeerkat(meerkat_server.url, TOKEN)
        session = await client.session(tools=[waits])
        await session.start_turn("@call waits @say Done.")
        answering = asyncio.create_task(session.answer_calls())
        await is_running.wait()
        assert not answering.done()
        return meerkat.session(session.session_id)

    # Its tasks are cancelled; that is no answer of the tool.
    session = asyncio.run(main())
    assert [call["name"] for call in session.calls()["items"]] == ["waits"]


def test_plain_tools_of_an_async_program_wait_for_each_other(meerkat_server: MeerkatServer, meerkat: Meerkat) -> None:
    both = threading.Barrier(40)

    def meet(number: int) -> str:
        """Meets all others."""
        both.wait(timeout=60)
        return "met"

    def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        return wrapper

    @tool
    @passed_on
    async def later() -> str:
        """Is async, which cannot be seen."""
        return "later"

    async def main() -> Session:
        async with AsyncMeerkat(meerkat_server.url, TOKEN) as client:
            session = await client.session(tools=[meet, later])
            calls = " ".join(f'@call meet {{"number":{number}}}' for number in range(40))
            await session.run(f"{calls} @call later @say Done.")
            return meerkat.session(session.session_id)

    assert outcomes(asyncio.run(main())) == [("succeeded", "later")] + [("succeeded", "met")] * 40
    session = meerkat.session(tools=[later])
    session.run("@call later @say Done.")
    [(outcome, output)] = outcomes(session)
    assert outcome == "failed" and "use AsyncMeerkat" in output


@pytest.mark.parametrize("decided", [None, True, "aprove", {"reason": "x"}, {"decision": {1}}, ValueError("no idea")])
def test_a_decision_that_is_none_denies_and_says_why(meerkat: Meerkat, decided: Any) -> None:
    def decide(_: Any) -> Any:
        if isinstance(decided, ValueError):
            raise decided
        return decided

    session = meerkat.session()
    prompt = '@call test_ask {"name":"x","line":"y"} @say Done.'
    assert session.run(prompt, on_approval=decide).text == "Done."
    reasons = [str(event["reason"]) for event in session.events()["items"] if event["type"] == "approval_decided"]
    assert len(reasons) == 1 and reasons[0].startswith("The program could not decide: ")
    assert "no idea" in reasons[0] or "return" in reasons[0]


def test_a_decision_that_the_server_refuses_denies(meerkat: Meerkat) -> None:
    session = meerkat.session()
    prompt = '@call test_ask {"name":"x","line":"y"} @say Done.'
    session.run(prompt, on_approval=lambda _: {"decision": "approve", "scoop": "session"})
    decided = [event["decision"] for event in session.events()["items"] if event["type"] == "approval_decided"]
    assert decided == ["deny"]


def test_answer_calls_waits_for_a_server_that_is_down(steady_server: SteadyServer) -> None:
    def ours() -> str:
        """Is ours."""
        return "ours"

    steady = Meerkat(steady_server.url, TOKEN)
    session = steady.session(tools=[ours])
    session.start_turn("@call ours @say Done.")
    next(event for event in session.follow() if event["type"] == "call_requested")
    steady_server.kill()
    impatient = Meerkat(steady_server.url, TOKEN, patience=0).session(session.session_id, tools=[ours])
    answering = threading.Thread(target=impatient.answer_calls, kwargs={"until_idle": True})
    answering.start()
    assert steady_server.front.missed.wait(timeout=60)
    steady_server.start()
    answering.join(timeout=60)
    assert not answering.is_alive()
    assert outcomes(session) == [("succeeded", "ours")]


def test_answer_calls_waits_for_the_list_of_calls(meerkat: Meerkat, meerkat_server: MeerkatServer) -> None:
    def ours() -> str:
        """Is ours."""
        return "ours"

    session = meerkat.session(tools=[ours])
    impatient = Meerkat(meerkat_server.url, TOKEN, patience=0)
    failures = iter([httpx.Response(status, headers=HTML, text="<html>No") for status in (502, 403)])
    has_begun = threading.Event()

    def fail(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/calls"):
            return None
        if has_begun.is_set():
            return next(failures, None)
        has_begun.set()
        return None

    between(impatient, fail)
    answering = impatient.session(session.session_id, tools=[ours]).answer_calls
    threading.Thread(target=answering, daemon=True).start()
    assert has_begun.wait(timeout=60)
    session.start_turn("@call ours @say Done.")
    next(event for event in session.follow() if event["type"] == "turn_completed")
    assert next(failures, None) is None
    impatient.close()


def test_answer_calls_ends_with_the_last_turn(meerkat: Meerkat) -> None:
    def ours() -> str:
        """Is ours."""
        return "ours"

    session = meerkat.session(tools=[ours])
    session.answer_calls(until_idle=True)
    session.start_turn("@call ours @say One.")
    session.start_turn("@call ours @say Two.", policy="queue")
    session.answer_calls(until_idle=True)
    assert session.read()["state"] == "idle" and outcomes(session) == [("succeeded", "ours")] * 2


def test_a_client_that_is_closed_says_so(meerkat: Meerkat, meerkat_server: MeerkatServer) -> None:
    other = Meerkat(meerkat_server.url, TOKEN)
    session = other.session()
    failed: list[str] = []

    def run() -> None:
        with pytest.raises(MeerkatError, match="The turn goes on|turn that runs goes on") as error:
            session.run("@say Wait. @stall", on_text=lambda _: is_running.set())
        failed.append(error.value.code)

    is_running = threading.Event()
    running = threading.Thread(target=run)
    running.start()
    assert is_running.wait(timeout=60)
    other.close()
    here = meerkat.session(session.session_id)
    here.pin("It sees this.")
    running.join(timeout=60)
    assert failed == ["CLIENT_CLOSED"] and here.read()["state"] == "running"
    with pytest.raises(MeerkatError) as closed:
        session.read()
    assert closed.value.code == "CLIENT_CLOSED"
    here.interrupt()


def test_a_tool_of_another_program_is_named_once(meerkat: Meerkat, caplog: pytest.LogCaptureFixture) -> None:
    def ours(session_id: str) -> str:
        """Answers the other program's call."""
        session = meerkat.session(session_id)
        for call in session.calls()["items"]:
            if call["name"] == "theirs":
                session.answer_call(call["call_id"], "succeeded")
        return "ours"

    def theirs() -> str:
        """Is theirs."""
        return "theirs"

    session = meerkat.session(tools=[theirs, ours])
    other = meerkat.session(session.session_id, tools=[ours])
    with caplog.at_level(logging.WARNING):
        other.run(f'@call theirs @call ours {{"session_id":"{session.session_id}"}} @say Done.').completed()
    assert [record.getMessage().split(" ", 1)[1] for record in caplog.records] == [
        "waits for a program that has the tool theirs"
    ]


def test_each_walks_all_pages(meerkat: Meerkat, meerkat_server: MeerkatServer) -> None:
    made = {meerkat.session(labels={"walk": "all"}).session_id for _ in range(5)}
    assert {one["session_id"] for one in meerkat.each(meerkat.list, labels={"walk": "all"}, limit=2)} == made

    async def main() -> list[str]:
        async with AsyncMeerkat(meerkat_server.url, TOKEN) as client:
            listed: AsyncIterator[Any] = client.each(client.list, labels={"walk": "all"}, limit=2)
            return [one["session_id"] async for one in listed]

    walked = asyncio.run(main())
    assert set(walked) == made and len(walked) == 5


def test_text_between_calls_and_reasoning_comes_once(meerkat: Meerkat) -> None:
    def texts(prompt: str) -> str:
        pieces: list[str] = []
        meerkat.session().run(prompt, on_text=lambda piece: pieces.append(piece))
        return "".join(pieces)

    call = '@call test_echo {"text":"x"}'
    assert texts(f"@say A @say B {call} @say C") == "ABC"
    assert texts(f"@think H @say A @think I @think J @say B @say C {call} @say D") == "ABCD"
    # A text that begins with the mark of its encoding keeps it.
    assert texts("@say \\u{feff}One.") == "\ufeffOne."
    assert texts("@say \\u{feff}One. @long 200000")[:5] == "\ufeffOne."
