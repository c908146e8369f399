"""Tests of a client against scripts: each prompt says what the model will do."""

import pytest

import tour
from meerkat import Meerkat, MeerkatError


def ended(meerkat: Meerkat, prompt: str) -> list[dict]:
    return list(meerkat.turn(tour.create(meerkat, "A test"), prompt))


def test_answer(meerkat: Meerkat):
    session = tour.create(meerkat, "A test")
    assert tour.ask(meerkat, session, "@say Lima. @usage in=12 out=2") == "Lima."
    assert meerkat.call("GET", f"/v1/sessions/{session}")["usage"]["output_tokens"] == 2


def test_rate_limit_that_passes(meerkat: Meerkat):
    session = tour.create(meerkat, "A test")
    # The model is asked again twice, and says how often it was asked before.
    assert tour.ask(meerkat, session, "@fail rate_limited retry_after_ms=50 times=2 @echo attempt") == "attempt: 2"


def test_rate_limit_that_stays(meerkat: Meerkat):
    session = tour.create(meerkat, "A test")
    with pytest.raises(MeerkatError) as refused:
        tour.ask(meerkat, session, "@fail rate_limited retry_after_ms=1")
    assert refused.value.code == "MODEL_RATE_LIMITED" and refused.value.retryable


def test_cut_stream(meerkat: Meerkat):
    events = ended(meerkat, "@say The answer is @cut")
    assert [event["text"] for event in events if event["type"] == "partial_text"] == ["The answer is"]
    assert events[-1]["type"] == "turn_failed"
    assert events[-1]["error"]["code"] == "MODEL_STREAM_INCOMPLETE"


def test_tool_call(meerkat: Meerkat):
    events = ended(meerkat, '@call test_set {"name":"city","value":"Lima"} @say Noted.')
    results = [(event["name"], event["outcome"]) for event in events if event["type"] == "tool_finished"]
    assert results == [("test_set", "succeeded")]


def test_slow_answer(meerkat: Meerkat):
    # One character at a time, and then nothing: the client must not wait for ever.
    session = tour.create(meerkat, "A test")
    for event in meerkat.turn(session, "@chunks 1 @say Wait @stall"):
        if event["type"] == "text_delta":
            tour.interrupt(meerkat, session, event["turn"])
    assert event["type"] == "turn_interrupted"
