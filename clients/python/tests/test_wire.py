"""What goes over the wire: frames of a stream, pieces of a text, errors, and when a request is sent again."""

import json
import math
import random
import time
from typing import Any

import httpx
import pytest

from meerkat import Meerkat, MeerkatError
from meerkat._wire import Frames, Patience, Shown, query_of, refusal, result_of

URL = httpx.URL("http://127.0.0.1:7670")
EVENTS = [{"seq": 1, "type": "a", "text": "ä\u2028\u0085 \r\n"}, {"type": "b"}, {"seq": 2, "type": "c"}]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_stream_may_be_cut_anywhere(end: str) -> None:
    lines = [": a comment"]
    for event in EVENTS:
        lines += [
            "id: 1",
            "retry: 5",
            "data:" + json.dumps(event, ensure_ascii=False, indent=1).replace("\n", f"{end}data: "),
            "",
        ]
    stream = (end.join(lines) + end).encode()
    for at in range(len(stream)):
        frames = Frames()
        events = [event for piece in (stream[:at], stream[at:], b": end\n") for event in frames.feed(piece)]
        assert events == EVENTS, at
    frames = Frames()
    assert [event for byte in stream + b"\n" for event in frames.feed(bytes([byte]))] == EVENTS


def test_a_frame_that_is_not_complete_is_no_event() -> None:
    assert list(Frames().feed(b'data: {"seq":1}\n')) == []


def test_a_failure_is_raised() -> None:
    body = {"code": "SHUTTING_DOWN", "message": "Bye.", "retryable": True, "details": {}}
    with pytest.raises(MeerkatError) as failed:
        list(Frames().feed(f"event: failure\ndata: {json.dumps(body)}\n\n".encode()))
    assert failed.value.code == "SHUTTING_DOWN" and failed.value.retryable


def test_each_character_is_shown_once() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    text = "Käse, 日本, 🦡 und Brot"
    for _ in range(200):
        shown, said, at = Shown(), "", 0
        while at < len(text):
            size = chance.randint(1, 5)
            offset = len(text[:at].encode())
            # A piece is missed, comes once, or comes again from the beginning.
            match chance.randrange(3):
                case 0:
                    said += shown.fresh(0, 0, offset, text[at : at + size])
                case 1:
                    said += shown.fresh(0, 0, 0, text[: at + size])
            at += size
        said += shown.fresh(0, 0, 0, text)
        assert said == text


@pytest.mark.parametrize("came", range(5))
def test_a_message_has_what_was_missed_of_each_run(came: int) -> None:
    """Live pieces count runs of text and of reasoning; a message has each block, and calls between them."""
    blocks = [("text", "Ä"), ("text", "B"), ("tool_call", ""), ("text", "C"), ("reasoning", "H"), ("reasoning", "I")]
    blocks += [("text", ""), ("text", "D")]
    live = [(0, 0, "Ä"), (0, 2, "B"), (0, 3, "C"), (2, 0, "D")]
    events: list[Any] = [
        {"type": "text_delta", "step": 0, "block": block, "offset": offset, "text": text}
        for block, offset, text in live[:came]
    ]
    said = [{"type": kind, "text": text} if kind != "tool_call" else {"type": kind} for kind, text in blocks]
    events.append({"type": "assistant_message", "step": 0, "blocks": said})
    with Meerkat("http://127.0.0.1:7670", "a-token-of-some-length") as meerkat:
        turn = meerkat.session("01900000-0000-7000-8000-000000000001").stream("Hello.")
        assert "".join(piece for event in events for piece in turn._fresh(event)) == "ÄBCD"


def answer(status: int, body: str, kind: str = "application/json") -> httpx.Response:
    request = httpx.Request("GET", "http://127.0.0.1:7670/v1/sessions?secret=1")
    return httpx.Response(status, text=body, headers={"content-type": kind}, request=request)


def test_an_answer_that_is_not_meerkats_keeps_its_status_and_beginning() -> None:
    error = refusal(answer(502, "<html>Bad gateway" + "x" * 1000, "text/html"))
    assert (error.code, error.status, error.retryable) == ("NOT_MEERKAT", 502, True)
    assert "<html>Bad gateway" in error.message and len(error.message) < 400 and "secret" not in error.message
    for body, kind in (("<html>Log in", "text/html"), ("{", "application/json")):
        with pytest.raises(MeerkatError) as stranger:
            result_of(answer(200, body, kind))
        assert (stranger.value.code, stranger.value.status) == ("NOT_MEERKAT", 200)
    assert refusal(answer(404, '{"code": 7}')).code == "NOT_MEERKAT"


def test_a_refusal_has_what_the_server_says() -> None:
    error = refusal(answer(409, '{"code":"SESSION_BUSY","message":"No.","retryable":true,"details":{"turn":1}}'))
    assert (error.code, error.message, error.retryable, error.details, error.status) == (
        "SESSION_BUSY",
        "No.",
        True,
        {"turn": 1},
        409,
    )


def test_what_is_repeated() -> None:
    def repeats(error: httpx.TransportError | MeerkatError, is_repeatable: bool) -> bool:
        try:
            return Patience(60).after(error, is_repeatable, URL) > 0
        except MeerkatError:
            return False

    lost, unsent = httpx.ReadError("lost"), httpx.ConnectError("refused")
    assert repeats(lost, True) and not repeats(lost, False)
    assert repeats(unsent, True) and repeats(unsent, False)
    full, wrong = MeerkatError("STORE_FAILED", "", retryable=True), MeerkatError("INVALID_REQUEST", "")
    assert repeats(full, True) and not repeats(full, False) and not repeats(wrong, True)
    # Who waits for the running turn says so by the policy.
    assert not repeats(MeerkatError("SESSION_BUSY", "", retryable=True), True)


def test_pauses_grow_and_patience_ends() -> None:
    patience = Patience(60)
    pauses = [patience.after(httpx.ReadError(""), True, URL) for _ in range(12)]
    assert 0.05 <= pauses[0] <= 0.1 and all(2.5 <= pause <= 5 for pause in pauses[6:])
    with pytest.raises(MeerkatError) as over:
        Patience(0).after(httpx.ConnectError("refused"), True, URL)
    assert over.value.code == "UNREACHABLE" and "meerkat serve --rest" in over.value.message
    assert isinstance(over.value.__cause__, httpx.ConnectError)


def test_where_nothing_ever_was_patience_is_short() -> None:
    absent = httpx.ConnectError("refused")

    def repeats(seconds: float, after: float, is_reached: bool) -> bool:
        patience = Patience(seconds)
        patience.since = time.monotonic() - after
        try:
            return patience.after(absent, True, URL, is_reached) > 0
        except MeerkatError as error:
            assert "meerkat serve --rest" in error.message
            return False

    assert repeats(60, 1, False) and not repeats(60, 10, False)
    assert repeats(60, 10, True) and repeats(math.inf, 10, False)


def test_what_must_arrive_outlasts_a_proxys_refusal() -> None:
    refused = MeerkatError("NOT_MEERKAT", "", status=403)
    assert Patience(math.inf).after(refused, True, URL, True) > 0
    for seconds, is_reached in ((60, True), (math.inf, False)):
        with pytest.raises(MeerkatError):
            Patience(seconds).after(refused, True, URL, is_reached)


@pytest.mark.parametrize("event", ['{"type":"text_delta"}', ""])
def test_a_stream_that_fails_at_once_ends_patience(event: str) -> None:
    body = '{"code":"STORE_FAILED","message":"m","retryable":true,"details":{}}'
    stream = f": a comment\n\ndata: {event}\n\nevent: failure\ndata: {body}\n\n"
    connections = []

    def answer(request: httpx.Request) -> httpx.Response:
        connections.append(request)
        assert len(connections) < 100
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=stream)

    meerkat = Meerkat("http://127.0.0.1:7670", "a-token-of-some-length", patience=0.5)
    meerkat.http = httpx.Client(base_url=URL, transport=httpx.MockTransport(answer))
    with pytest.raises(MeerkatError) as failed:
        list(meerkat.session("01900000-0000-7000-8000-000000000001").follow())
    assert failed.value.code == "STORE_FAILED" and len(connections) > 1


def test_a_stream_whose_stored_events_move_on_keeps_its_patience() -> None:
    seqs = iter(range(1, 12))

    def answer(request: httpx.Request) -> httpx.Response:
        kind = "pinned" if (seq := next(seqs)) < 11 else "session_deleted"
        stream = f'data: {{"seq":{seq},"type":"{kind}"}}\n\n'
        assert request.headers["Last-Event-ID"] == str(seq - 1)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=stream)

    # One pause fits into this patience, and ten do not.
    meerkat = Meerkat("http://127.0.0.1:7670", "a-token-of-some-length", patience=0.2)
    meerkat.http = httpx.Client(base_url=URL, transport=httpx.MockTransport(answer))
    assert len(list(meerkat.session("01900000-0000-7000-8000-000000000001").follow())) == 11


def test_a_wrong_token_says_where_the_right_one_is() -> None:
    body = '{"code":"UNAUTHENTICATED","message":"Send the token.","retryable":false,"details":{}}'
    error = refusal(answer(401, body))
    assert error.message.startswith("The token is wrong for http://127.0.0.1:7670/. Type `export")
    assert str(error) == f"UNAUTHENTICATED: {error.message}" and error.status == 401


def test_queries() -> None:
    assert query_of({"a": None, "b": True, "c": 7, "labels": {"x": "y"}}) == {"b": "true", "c": "7", "labels[x]": "y"}


def test_a_client_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEERKAT_URL", raising=False)
    monkeypatch.delenv("MEERKAT_TOKEN", raising=False)
    with pytest.raises(MeerkatError, match=r"export MEERKAT_TOKEN=\$\(meerkat token\)"):
        Meerkat()
    with pytest.raises(MeerkatError, match="blank"):
        Meerkat(token="two words")
    with pytest.raises(MeerkatError, match="is a text"):
        Meerkat(token=5)  # type: ignore[arg-type]
    for url in ("127.0.0.1:7670", "ftp://localhost", "http://"):
        with pytest.raises(MeerkatError, match="is not an address"):
            Meerkat(url, "a-token-of-some-length")
    monkeypatch.setenv("MEERKAT_TOKEN", "a-token-of-some-length")
    assert str(Meerkat().http.base_url) == "http://127.0.0.1:7670"
    monkeypatch.setenv("MEERKAT_URL", "https://meerkat.example/sub/")
    assert str(Meerkat().http.base_url) == "https://meerkat.example/sub/"
    # A proxy of the environment would see the token.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with Meerkat("http://localhost:7670") as here:
        assert not here.http.trust_env
