"""Tools that a program runs: beside each other, once, whatever happens to an answer; with `async` and without."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from meerkat import AsyncMeerkat, Meerkat, Session, image, tool, types
from meerkat_testing import TOKEN, MeerkatServer
from proxy import Proxy, SteadyServer, proxy, steady_server, through

__all__ = ["proxy", "steady_server"]

DOT = Path(__file__).with_name("dot.png")

TWO = '@call meet {"name":"a"} @call meet {"name":"b"} @echo last_result'


def outcomes(session: Session) -> list[tuple[str, Any]]:
    events = session.events(limit=1000)["items"]
    finished = [event for event in events if event["type"] == "tool_finished"]
    return sorted((event["outcome"], event["output"]) for event in finished)


def test_calls_of_one_message_run_beside_each_other(meerkat: Meerkat) -> None:
    both = threading.Barrier(2)

    def meet(name: str) -> str:
        """Meets the other call: alone it would wait for a minute, and fail."""
        both.wait(timeout=60)
        return name

    session = meerkat.session(tools=[meet])
    session.run(TWO).completed()
    assert outcomes(session) == [("succeeded", "a"), ("succeeded", "b")]


def test_async_calls_of_one_message_run_beside_each_other(meerkat_server: MeerkatServer, meerkat: Meerkat) -> None:
    async def main() -> str:
        both = asyncio.Barrier(2)

        @tool
        async def meet(name: str) -> str:
            """Meets the other call."""
            async with asyncio.timeout(60):
                await both.wait()
            return name

        async with AsyncMeerkat(meerkat_server.url, meerkat_server.token) as client:
            session = await client.session(tools=[meet])
            said: list[str] = []

            async def show(piece: str) -> None:
                said.append(piece)

            result = await session.run(TWO, on_text=show)
            assert "".join(said) == result.completed().text
            return session.session_id

    assert outcomes(meerkat.session(asyncio.run(main()))) == [("succeeded", "a"), ("succeeded", "b")]


def test_async_approval_and_texts(meerkat_server: MeerkatServer) -> None:
    async def decide(event: types.ApprovalRequestedEvent) -> dict[str, str]:
        return {"decision": "deny", "reason": f"not {event['name']}"}

    async def main() -> list[str]:
        async with AsyncMeerkat(meerkat_server.url, meerkat_server.token) as client:
            session = await client.session()
            turn = session.stream('@call test_ask {"name":"x","line":"y"} @echo last_result', on_approval=decide)
            return [piece async for piece in turn.texts()]

    assert "not test_ask" in "".join(asyncio.run(main()))


def test_a_call_that_two_streams_of_a_program_see_runs_once(meerkat: Meerkat) -> None:
    runs, both_saw = [], threading.Event()

    def count() -> str:
        """Counts, and answers when the second stream has seen the call, too."""
        runs.append("ran")
        both_saw.wait(timeout=60)
        return "counted"

    session = meerkat.session(tools=[count])
    with session.stream("@call count @echo last_result", key="one") as first:
        next(event for event in first if event["type"] == "call_requested")
        with session.stream("@call count @echo last_result", key="one") as second:
            next(event for event in second if event["type"] == "call_requested")
            both_saw.set()
            assert second.wait().text == first.wait().text == "last_result: counted"
    assert runs == ["ran"]


def test_an_async_tool_needs_the_async_client(meerkat: Meerkat) -> None:
    async def later() -> str:
        """Answers later."""
        return "now"

    with pytest.raises(TypeError, match="use AsyncMeerkat"):
        meerkat.session(tools=[later])


def test_an_exception_is_what_the_model_reads(meerkat: Meerkat) -> None:
    def fails() -> None:
        """Fails."""
        raise ValueError("the shop is closed")

    session = meerkat.session(tools=[fails])
    assert "the shop is closed" in session.run("@call fails @echo last_result").text
    assert [outcome for outcome, _ in outcomes(session)] == ["failed"]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (float("nan"), "JSON"),
        ({1, 2}, "JSON"),
        # The server takes no picture of which it cannot read the size.
        ({"type": "image", "media_type": "image/png", "data": "AAAA"}, "image"),
    ],
)
def test_an_answer_that_cannot_be_sent_is_a_failed_call(meerkat: Meerkat, returned: Any, said: str) -> None:
    def gives() -> Any:
        """Gives something."""
        return returned

    session = meerkat.session(tools=[gives])
    assert session.run("@call gives @say Done.").text == "Done."
    assert [(outcome, said in str(output)) for outcome, output in outcomes(session)] == [("failed", True)]


def test_a_tool_may_answer_with_a_picture_and_words(meerkat: Meerkat) -> None:
    def shot() -> list[Any]:
        """Takes a picture."""
        return ["See:", image(DOT)]

    session = meerkat.session(tools=[shot])
    session.run("@call shot @say Done.").completed()
    events = session.events()["items"]
    images = [event.get("images") for event in events if event["type"] == "tool_finished"]
    assert images[0] and (images[0][0]["width"], images[0][0]["height"]) == (2, 1)


def test_a_call_of_another_programs_tool_is_left_alone(meerkat: Meerkat) -> None:
    def ours() -> str:
        """Is ours."""
        return "ours"

    def theirs() -> str:
        """Is theirs."""
        return "theirs"

    session = meerkat.session(tools=[ours, theirs])
    other = Meerkat(str(meerkat.http.base_url), TOKEN)
    answering = threading.Thread(target=other.session(session.session_id, tools=[ours]).answer_calls)
    answering.start()
    begun = session.start_turn("@call ours @call theirs @echo last_result")
    answered = [event["call_id"] for event in until(session, "call_answered")]
    waiting = session.calls()["items"]
    assert [(call["name"], call["call_id"] in answered) for call in waiting] == [("theirs", False)]
    session.answer_call(waiting[0]["call_id"], "succeeded", content=[{"type": "text", "text": "by hand"}])
    until(session, "turn_completed")
    assert outcomes(session) == [("succeeded", "by hand"), ("succeeded", "ours")]
    assert session.read()["turn_count"] == begun["turn"] + 1
    other.close()
    # The closed client sees it with the next line of its stream; one comes every 15 seconds at least.
    session.pin("It ends.")
    answering.join(timeout=60)
    assert not answering.is_alive()


def until(session: Session, kind: str) -> list[types.CallAnsweredEvent]:
    """Follows the session up to an event of this kind, and returns the answers on the way."""
    answers = []
    for event in session.follow():
        if event["type"] == "call_answered":
            answers.append(event)
        if event["type"] == kind:
            return answers
    raise AssertionError(f"the session was deleted before {kind}")


def test_calls_are_answered_after_a_restart_of_the_server(steady_server: SteadyServer) -> None:
    def ours() -> str:
        """Is ours."""
        return "ours"

    session = Meerkat(steady_server.url, TOKEN).session(tools=[ours])
    other = Meerkat(steady_server.url, TOKEN, patience=0)
    threading.Thread(target=other.session(session.session_id, tools=[ours]).answer_calls, daemon=True).start()
    session.start_turn("@call ours @say Done.")
    until(session, "turn_completed")
    steady_server.kill()
    steady_server.start()
    session.start_turn("@call ours @say Done.")
    end = time.monotonic() + 60
    while session.read()["state"] != "idle" and time.monotonic() < end:
        time.sleep(0.05)
    assert outcomes(session) == [("succeeded", "ours")] * 2
    other.close()


def test_an_answer_that_came_from_elsewhere_is_no_error(meerkat: Meerkat, caplog: pytest.LogCaptureFixture) -> None:
    running: list[threading.Thread] = []

    def slow(session_id: str) -> str:
        """Is slower than another program."""
        running.append(threading.current_thread())
        other = meerkat.session(session_id)
        other.answer_call(
            other.calls()["items"][0]["call_id"], "succeeded", content=[{"type": "text", "text": "quick"}]
        )
        return "slow"

    session = meerkat.session(tools=[slow])
    result = session.run(f'@call slow {{"session_id":"{session.session_id}"}} @echo last_result')
    assert result.completed().text == "last_result: quick"
    running[0].join(timeout=60)
    assert not running[0].is_alive() and not caplog.records


def test_an_answer_that_is_lost_is_sent_again_and_read_once(
    meerkat: Meerkat, meerkat_server: MeerkatServer, proxy: Proxy
) -> None:
    runs = []

    @tool
    def pay() -> str:
        """Pays."""
        runs.append("paid")
        # The idle connection, and the next three: the answer does not arrive, and then what the server says to it.
        proxy.cut()
        proxy.limits = iter([-1, 0, 20])
        return "paid"

    session = meerkat.session(tools=[pay])
    served = through(proxy, meerkat_server, session)
    assert served.run("@call pay @echo last_result", tools=[pay]).text == "last_result: paid"
    assert next(proxy.limits, None) is None
    assert runs == ["paid"]
    assert outcomes(session) == [("succeeded", "paid")]


def test_leaving_a_stream_closes_its_connection_and_leaves_the_turn(
    meerkat: Meerkat, meerkat_server: MeerkatServer, proxy: Proxy
) -> None:
    session = meerkat.session()
    with through(proxy, meerkat_server, session).stream("@say Wait. @stall") as turn:
        number = next(turn)["turn"]
        assert not proxy.left.is_set()
    assert proxy.left.wait(timeout=60)
    assert session.read()["state"] == "running"
    session.interrupt(turn=number)


def test_a_silent_connection_counts_as_lost(meerkat: Meerkat, meerkat_server: MeerkatServer, proxy: Proxy) -> None:
    session = meerkat.session()
    served = through(proxy, meerkat_server, session)
    # A minute otherwise: the server sends a line every 15 seconds at least.
    assert served.meerkat.http.timeout.read == 60
    served.meerkat.http.timeout = 1
    seen: list[str] = []
    for event in served.follow():
        if "seq" in event:
            seen.append(event["type"])
        if len(seen) == 1:
            proxy.mute()
            session.run("@say Hello.")
        if event["type"] == "turn_completed":
            break
    assert seen == ["session_created", "turn_started", "assistant_message", "turn_completed"]
    assert proxy.connections >= 2
