"""Runs every part of the tour against a server, and the parts that promise to survive a bad network over one."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import tour
from meerkat import Meerkat, MeerkatError, Session, tool, types
from meerkat_testing import MeerkatServer
from proxy import Proxy, SteadyServer, proxy, steady_server, through

__all__ = ["proxy", "steady_server"]

# Three steps, with text before and after a call.
PROMPT = (
    '@think Hm. @say First ä part. @call test_echo {"text":"x"} @say Second. @call test_echo {"text":"y"} @say The end.'
)
# A picture of two pixels.
DOT = Path(__file__).with_name("dot.png")
ENDS = ("turn_completed", "turn_failed", "turn_interrupted")


@pytest.fixture
def session(meerkat: Meerkat) -> Session:
    return tour.create(meerkat, "A tour")


def stored(session: Session) -> list[types.Event]:
    return session.events(limit=1000)["items"]


def test_create(session: Session) -> None:
    view = session.read()
    assert (view["title"], view["labels"], view["turn_count"]) == ("A tour", {"app": "tour"}, 0)


def test_ask(session: Session) -> None:
    assert tour.ask(session, "@say Lima.") == "Lima."


def test_ask_fails_with_the_turns_error(session: Session) -> None:
    with pytest.raises(MeerkatError) as failed:
        tour.ask(session, "@fail rejected")
    assert failed.value.code == "MODEL_REJECTED"


def test_streamed_text_comes_in_pieces(session: Session) -> None:
    # The answer cannot be complete: the model never ends it.
    pieces = tour.streamed(session, "@say Wait for it. @stall")
    said = ""
    while said != "Wait for it.":
        said += next(pieces)


def test_on_text_gets_what_the_stream_has(session: Session) -> None:
    pieces: list[str] = []
    result = session.run("@chunks 1 @say Ein Bär.", on_text=pieces.append)
    assert "".join(pieces) == result.text == "Ein Bär."


def test_a_long_text_is_read_from_its_blob(session: Session) -> None:
    assert len("".join(tour.streamed(session, "@chunks 50000 @long 1500000"))) == 1_500_000
    texts = [
        block.get("text")
        for event in stored(session)
        if event["type"] == "assistant_message"
        for block in event["blocks"]
    ]
    assert texts and isinstance(texts[0], dict) and texts[0]["bytes"] == 1_500_000
    whole = session.text(texts[0])
    assert len(whole) == 1_500_000 and whole.endswith(texts[0]["tail"])


@pytest.mark.parametrize("limit", range(1200, 1900, 150))
def test_no_event_is_lost_or_repeated_wherever_connections_break(
    meerkat_server: MeerkatServer, proxy: Proxy, session: Session, limit: int
) -> None:
    tour.ask(session, PROMPT)
    end = session.start_turn(PROMPT)["turn"]
    proxy.limits = itertools.repeat(limit)
    seen = []
    for event in through(proxy, meerkat_server, session).follow():
        if "seq" in event:
            seen.append(event)
        if event["type"] in ENDS and event["turn"] == end:
            break
    assert seen == stored(session)
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert proxy.connections > 2


@pytest.mark.parametrize("limit", range(1200, 1900, 150))
def test_streamed_text_is_whole_wherever_connections_break(
    meerkat_server: MeerkatServer, proxy: Proxy, session: Session, limit: int
) -> None:
    proxy.limits = itertools.repeat(limit)
    pieces = tour.streamed(through(proxy, meerkat_server, session), PROMPT)
    assert "".join(pieces) == "First ä part.Second.The end."
    assert proxy.connections > 2
    assert session.read()["turn_count"] == 1


def until_again(proxy: Proxy, session: Session, events: Iterable[types.AnyEvent]) -> Iterator[types.AnyEvent]:
    """Passes a turn's events on, breaks the connection at its text, and ends the turn when the text comes again."""
    for event in events:
        yield event
        if event["type"] == "text_delta":
            if proxy.connections == 1:
                proxy.cut()
            else:
                tour.interrupt(session, event["turn"])


def test_a_live_event_does_not_move_the_cursor(meerkat_server: MeerkatServer, proxy: Proxy, session: Session) -> None:
    session.start_turn("@say Wait for it. @stall")
    seen = []
    for event in until_again(proxy, session, through(proxy, meerkat_server, session).follow()):
        if "seq" in event:
            seen.append(event)
        if event["type"] in ENDS:
            break
    assert seen == stored(session)
    assert proxy.connections == 2


def test_text_that_comes_again_is_not_shown_again(
    meerkat_server: MeerkatServer, proxy: Proxy, session: Session
) -> None:
    said: list[str] = []
    turn = through(proxy, meerkat_server, session).stream("@say Wait for it. @stall", on_text=said.append)
    for _ in until_again(proxy, session, turn):
        pass
    assert "".join(said) == "Wait for it."
    # Two for its streams, and one for its result.
    assert proxy.connections == 3


def test_follow_continues_when_the_server_was_killed(steady_server: SteadyServer) -> None:
    session = Meerkat(steady_server.url, steady_server.token).session()
    kinds: list[str] = []
    turn = session.stream('@call test_sleep {"ms":600000} @say Done.')
    for event in turn:
        # Live events, such as a tool's progress, come only if there is time.
        if "seq" in event:
            kinds.append(event["type"])
        if event["type"] == "tool_started":
            steady_server.kill()
            steady_server.start()
    assert kinds[-3:] == ["tool_started", "tool_finished", "turn_interrupted"]
    assert turn.result.status == "interrupted"


def test_reconnect(session: Session) -> None:
    tour.ask(session, "@say Hello.")
    assert tour.reconnect(session, 2) == [3, 4]
    with pytest.raises(MeerkatError) as refused:
        tour.reconnect(session, 99)
    assert refused.value.code == "CURSOR_OUT_OF_RANGE"


def test_retry(session: Session) -> None:
    assert tour.retry(session) == 1
    session.run("@say One.", key="k")
    with pytest.raises(MeerkatError) as refused:
        session.run("@say Another.", key="k")
    assert refused.value.code == "IDEMPOTENCY_CONFLICT"


def test_a_turn_runs_once_though_its_answers_are_lost(
    meerkat_server: MeerkatServer, proxy: Proxy, session: Session
) -> None:
    proxy.limits = iter([0, 1, 20])
    assert through(proxy, meerkat_server, session).run("@say Once.").text == "Once."
    # Three were lost. Then one begins the turn and follows it, and one gets its result.
    assert proxy.connections == 5
    assert [event["type"] for event in stored(session)].count("turn_started") == 1


def test_a_session_is_made_once_though_answers_are_lost(
    meerkat: Meerkat, meerkat_server: MeerkatServer, proxy: Proxy
) -> None:
    proxy.limits = iter([0, 1])
    through_it = Meerkat(proxy.url, meerkat_server.token)
    through_it.http.headers["Host"] = meerkat_server.address
    made = through_it.session(labels={"made": "once"})
    assert proxy.connections == 3
    listed = meerkat.list(labels={"made": "once"})["items"]
    assert [one["session_id"] for one in listed] == [made.session_id]


def test_what_may_not_be_repeated_is_not(meerkat_server: MeerkatServer, proxy: Proxy, session: Session) -> None:
    proxy.limits = iter([0])
    with pytest.raises(MeerkatError) as lost:
        through(proxy, meerkat_server, session).pin("Never deploy on Fridays.")
    assert lost.value.code == "UNREACHABLE"
    assert proxy.connections == 1


def test_a_tool(session: Session) -> None:
    said = tour.with_a_tool(session, '@call weather {"city":"Oslo"} @echo last_result')
    assert said == 'last_result: {"city":"Oslo","degrees":21}'
    # The session has the tool from now on; this turn only says which function runs it.
    again = session.meerkat.session(session.session_id, tools=[tour.weather])
    assert '"degrees":70' in again.run('@call weather {"city":"Oslo","unit":"fahrenheit"} @echo last_result').text


def test_a_tool_gets_its_call(session: Session) -> None:
    result = session.run('@call remember {"note":"milk"} @echo last_result', tools=[tour.remember])
    calls = [event["call_id"] for event in stored(session) if event["type"] == "call_requested"]
    assert result.text == f"last_result: kept 'milk' under {calls[0]}"


def test_a_picture(session: Session) -> None:
    assert tour.describe(session, DOT, "@echo blocks").startswith("blocks: [Image 1: image/png, 2 x 1 pixels, ")
    with pytest.raises(MeerkatError, match="not a PNG"):
        tour.describe(session, b"text", "@echo blocks")


def test_a_schema(session: Session) -> None:
    prompt = '@json {"city":"Bern","people":"many"} @step @json {"city":"Bern","people":134591}'
    assert tour.place(session, prompt) == tour.Place("Bern", 134591)
    assert [event["type"] for event in stored(session)].count("output_refused") == 1
    with pytest.raises(MeerkatError) as wrong:
        tour.place(session, '@repeat 9 @json {"city":"Bern"}')
    assert wrong.value.code == "OUTPUT_INVALID"


def test_options(session: Session) -> None:
    assert tour.carefully(session, "@echo options") == 'options: {"max_output_tokens":500,"temperature":0.2}'
    with pytest.raises(MeerkatError) as exhausted:
        tour.carefully(session, " @step ".join(f'@call test_echo {{"text":"{number}"}}' for number in range(11)))
    assert exhausted.value.code == "BUDGET_EXHAUSTED"


def test_cost(meerkat: Meerkat, capsys: pytest.CaptureFixture[str]) -> None:
    session = meerkat.session()
    assert tour.kinds(session, "@say Hi. @usage in=12 out=2") == ["turn_started", "assistant_message", "turn_completed"]
    # The scripted model has no price.
    assert capsys.readouterr().out == "cost: None tokens: 2\n"


@pytest.mark.parametrize(("decision", "outcome"), [("approve", "succeeded"), ("deny", "not_run")])
def test_approve(meerkat_server: MeerkatServer, session: Session, decision: types.Decision, outcome: str) -> None:
    prompt = f'@call test_ask {{"name":"{decision}","line":"milk"}} @say Done.'
    assert tour.approve(session, prompt, decision) == [outcome]
    assert (meerkat_server.folder / "tools" / decision).exists() == (decision == "approve")


def test_steer(session: Session) -> None:
    @tool
    def wait() -> None:
        """Steers the turn while it waits for this call."""
        tour.steer(session, "Only Oslo, please.")

    events = list(session.stream("@call wait @say Done.", tools=[wait]))
    assert [event["prompt"] for event in events if event["type"] == "turn_steered"] == ["Only Oslo, please."]
    order = [event["type"] for event in events if event["type"] in ("tool_finished", "steering_entered")]
    assert order == ["tool_finished", "steering_entered"]


def test_a_stream_has_the_events_of_its_turn_alone(session: Session) -> None:
    running = session.start_turn("@stall")["turn"]
    queued = session.stream("@say Second.", policy="queue")
    seen = []
    for event in queued:
        seen.append((event["type"], event["turn"]))
        if event["type"] == "turn_queued":
            tour.interrupt(session, running)
    kinds = ["turn_queued", "turn_started", "assistant_message", "turn_completed"]
    assert [(kind, turn) for kind, turn in seen if kind != "text_delta"] == [(kind, 1) for kind in kinds]
    assert queued.result.text == "Second."


def test_a_turn_that_left_the_queue_is_an_error(session: Session) -> None:
    session.start_turn("@stall")
    queued = session.stream("@say Second.", policy="queue")
    assert next(queued)["type"] == "turn_queued"
    session.cancel_queued(1)
    with pytest.raises(MeerkatError) as left:
        queued.wait()
    assert left.value.code == "TURN_INTERRUPTED"


def test_interrupt(session: Session) -> None:
    turn = session.start_turn("@stall")["turn"]
    assert tour.interrupt(session, turn)
    reasons = [event["reason"] for event in stored(session) if event["type"] == "turn_interrupted"]
    assert reasons == ["requested"]
    assert not tour.interrupt(session, turn)


def test_history(meerkat: Meerkat) -> None:
    assert tour.continued(meerkat) == "messages: 3"


def test_fork(meerkat: Meerkat, session: Session) -> None:
    tour.ask(session, "@say One.")
    tour.ask(session, "@say Two.")
    assert tour.fork(meerkat, session, 0).read()["turn_count"] == 1


def test_search(meerkat: Meerkat, session: Session) -> None:
    tour.ask(session, "@say The capital of Peru is Lima.")
    # A search waits two seconds for what was just said; on a busy machine that may be too short.
    end = time.monotonic() + 60
    while not (found := tour.search(meerkat, "capital of Peru")) and time.monotonic() < end:
        time.sleep(0.05)
    assert "Lima" in found[0]


def test_errors_by_code(meerkat: Meerkat, meerkat_server: MeerkatServer, session: Session) -> None:
    def code(session: Session) -> str:
        with pytest.raises(MeerkatError) as refused:
            tour.ask(session, "hello")
        return tour.explain(refused.value)

    assert code(meerkat.session("01900000-0000-7000-8000-000000000001")).startswith("The session was deleted")
    stranger = Meerkat(meerkat_server.url, "a-wrong-token-of-some-length")
    assert code(stranger.session(session.session_id)) == "The token is wrong."
    absent = Meerkat("http://127.0.0.1:1", "a-token-of-some-length", patience=0)
    assert code(absent.session(session.session_id)) == "The server does not answer."
    session.start_turn("@stall")
    assert code(session).startswith("A turn is running")


def test_the_tour_runs_as_a_program(meerkat_server: MeerkatServer) -> None:
    environment = os.environ | {"MEERKAT_URL": meerkat_server.url, "MEERKAT_TOKEN": meerkat_server.token}
    command = [sys.executable, str(Path(__file__).with_name("tour.py"))]
    lines = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines == [
        "asked: The capital of Peru is Lima.",
        "streamed: One piece after the other.",
        "cost: None tokens: 2",
        "events: ['turn_started', 'assistant_message', 'turn_completed']",
        'tool: last_result: {"city":"Oslo","degrees":21}',
        "place: Place(city='Bern', people=134591)",
        "new since event 12: [13, 14, 15, 16, 17, 18, 19, 20, 21]",
        "turns after a retry: 6",
        "interrupted: True",
        "forked: True",
        "continued: messages: 3",
        "found: The capital of Peru is Lima.",
        "refused: The session was deleted: start another one.",
    ]


def test_the_first_program_runs(meerkat_server: MeerkatServer) -> None:
    environment = os.environ | {"MEERKAT_URL": meerkat_server.url, "MEERKAT_TOKEN": meerkat_server.token}
    command = [sys.executable, str(Path(__file__).with_name("first.py"))]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert said == "umbrella: True because: It rains.\n"
