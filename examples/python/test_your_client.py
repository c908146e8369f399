"""Tests of a program against scripts: each prompt says what the model will do."""

import tour
from meerkat import Meerkat, types


def ended(meerkat: Meerkat, prompt: str) -> list[types.AnyEvent]:
    return list(meerkat.session().stream(prompt))


def test_answer(meerkat: Meerkat) -> None:
    result = meerkat.session().run("@say Lima. @usage in=12 out=2")
    assert (result.text, result.usage["output_tokens"]) == ("Lima.", 2)


def test_rate_limit_that_passes(meerkat: Meerkat) -> None:
    # The model is asked again twice, and says how often it was asked before.
    result = meerkat.session().run("@fail rate_limited retry_after_ms=50 times=2 @echo attempt")
    assert result.text == "attempt: 2"


def test_rate_limit_that_stays(meerkat: Meerkat) -> None:
    result = meerkat.session().run("@fail rate_limited retry_after_ms=1")
    assert result.status == "failed"
    assert result.error and result.error.code == "MODEL_RATE_LIMITED" and result.error.retryable


def test_cut_stream(meerkat: Meerkat) -> None:
    events = ended(meerkat, "@say The answer is @cut")
    assert [event["text"] for event in events if event["type"] == "partial_text"] == ["The answer is"]
    codes = [event["error"]["code"] for event in events if event["type"] == "turn_failed"]
    assert codes == ["MODEL_STREAM_INCOMPLETE"]


def test_tool_call(meerkat: Meerkat) -> None:
    events = ended(meerkat, '@call test_set {"name":"city","value":"Lima"} @say Noted.')
    results = [(event["name"], event["outcome"]) for event in events if event["type"] == "tool_finished"]
    assert results == [("test_set", "succeeded")]


def test_slow_answer(meerkat: Meerkat) -> None:
    # One character at a time, and then nothing: the program must not wait for ever.
    session = meerkat.session()
    turn = session.stream("@chunks 1 @say Wait @stall")
    for event in turn:
        if event["type"] == "text_delta":
            tour.interrupt(session, event["turn"])
    assert turn.result.status == "interrupted"
