"""Drives meerkat with OpenAI's Python package: what its users do, with a kill of the server in between.

The scripted model says what the prompt tells it to say.
"""

import json
import threading
import time

import openai
from pydantic import BaseModel
from server import Server

TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
WEATHER = {"type": "function", "name": "weather", "description": "Weather of a city.", "parameters": TOOL}


def refused(status, code, request):
    """A request that is refused with this status and code."""
    try:
        request()
    except openai.APIStatusError as error:
        assert (error.status_code, error.code) == (status, code), (error.status_code, error.code, str(error))
        return error
    raise AssertionError("it was not refused")


def finish(client, response):
    """Waits until a response in the background has ended."""
    deadline = time.monotonic() + 60
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    return response


def models(client):
    assert "scripted" in [model.id for model in client.models.list()]
    assert client.models.retrieve("scripted").object == "model"
    refused(404, "ITEM_NOT_FOUND", lambda: client.models.retrieve("none"))
    wrong = client.with_options(api_key="wrong")
    error = refused(401, "UNAUTHENTICATED", wrong.models.list)
    assert isinstance(error, openai.AuthenticationError)


def responses(client):
    made = client.responses.create(
        model="scripted", instructions="Be brief.", input="@say Hello. @usage in=10 out=2", metadata={"a": "b"}, temperature=0.5
    )
    assert (made.status, made.output_text, made.metadata, made.temperature) == ("completed", "Hello.", {"a": "b"}, 0.5)
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (10, 2, 12)
    read = client.responses.retrieve(made.id)
    assert read.model_dump() == made.model_dump(), (read, made)
    items = client.responses.input_items.list(made.id).data
    assert [item.content[0].text for item in items] == ["@say Hello. @usage in=10 out=2"]
    image = {"type": "input_image", "image_url": "data:image/png;base64," + PIXEL}
    shown = client.responses.create(
        model="scripted", input=[{"role": "user", "content": [image, {"type": "input_text", "text": "@echo blocks"}]}]
    )
    assert "image/png" in shown.output_text, shown.output_text
    told = [
        {"role": "developer", "content": "You are told."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "@echo system"},
    ]
    assert client.responses.create(model="scripted", input=told).output_text == "system: You are told."


def streamed(client):
    kinds, numbers, text = [], [], ""
    with client.responses.stream(model="scripted", input="@think Hm. @say One two three.") as stream:
        for event in stream:
            kinds.append(event.type)
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
        final = stream.get_final_response()
    assert text == final.output_text == "One two three.", text
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds
    assert "response.reasoning_summary_text.delta" in kinds, kinds
    assert numbers == sorted(set(numbers)), numbers
    # From anywhere in it, the rest follows.
    for number in numbers:
        rest = list(client.responses.retrieve(final.id, stream=True, starting_after=number))
        assert all(event.sequence_number > number for event in rest)
        assert not rest or rest[-1].type == "response.completed"
    third = [event.delta for event in client.responses.retrieve(final.id, stream=True) if event.type == "response.output_text.delta"]
    assert "".join(third) == text


def parsed(client):
    class Answer(BaseModel):
        n: int

    made = client.responses.parse(model="scripted", input='@json {"n":"one"} @step @json {"n":1}', text_format=Answer)
    assert made.output_parsed == Answer(n=1), made
    chat = client.chat.completions.parse(
        model="scripted", messages=[{"role": "user", "content": '@json {"n":2}'}], response_format=Answer
    )
    assert chat.choices[0].message.parsed == Answer(n=2)


def background(client):
    made = client.responses.create(model="scripted", input="@say Later.", background=True)
    assert finish(client, made).output_text == "Later."
    stalled = client.responses.create(model="scripted", input="@stall", background=True)
    stopped = client.responses.cancel(stalled.id)
    assert stopped.status == "cancelled" and client.responses.retrieve(stalled.id).status == "cancelled"
    client.responses.delete(made.id)
    refused(404, "SESSION_NOT_FOUND", lambda: client.responses.retrieve(made.id))


def conversations(client):
    made = client.conversations.create(items=[{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}], metadata={"a": "b"})
    for count in (3, 5):
        said = client.responses.create(model="scripted", input="@echo messages", conversation=made.id)
        assert (said.output_text, said.conversation.id) == (f"messages: {count}", made.id), said
    assert client.conversations.retrieve(made.id).metadata == {"a": "b"}
    assert client.conversations.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.delete(made.id).deleted
    refused(404, "SESSION_NOT_FOUND", lambda: client.conversations.retrieve(made.id))


def chats(client):
    ask = {"role": "user", "content": "@say Hello. @usage in=7 out=3"}
    whole = client.chat.completions.create(model="scripted", messages=[{"role": "system", "content": "Be brief."}, ask])
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Hello.", "stop")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 3)
    stream = client.chat.completions.create(
        model="scripted", messages=[ask], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello."
    assert chunks[-1].usage.total_tokens == 10 and chunks[-2].choices[0].finish_reason == "stop"
    tool = {"type": "function", "function": {key: WEATHER[key] for key in ("name", "description", "parameters")}}
    said = [{"role": "user", "content": '@call weather {"city":"Rome"} @echo last_result'}]
    for is_stream in (False, True):
        if is_stream:
            calls = {}
            for chunk in client.chat.completions.create(model="scripted", messages=said, tools=[tool], stream=True):
                for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                    calls[call.index] = call.model_dump(exclude={"index"})
            message = {"role": "assistant", "content": None, "tool_calls": list(calls.values())}
        else:
            answer = client.chat.completions.create(model="scripted", messages=said, tools=[tool])
            assert answer.choices[0].finish_reason == "tool_calls"
            message = answer.choices[0].message.model_dump(exclude_none=True)
        call = message["tool_calls"][0]
        assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "Sunny."}
        done = client.chat.completions.create(model="scripted", messages=[*said, message, result], tools=[tool])
        assert done.choices[0].message.content == "last_result: Sunny.", done
    # Results of calls that no session here has made are a history.
    foreign = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "tool_calls": [{"id": "abc", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "abc", "content": "Sunny."},
    ]
    assert "Go on" in client.chat.completions.create(model="scripted", messages=foreign).choices[0].message.content


def bad(client):
    create, complete = client.responses.create, client.chat.completions.create
    say = [{"role": "user", "content": "hello"}]
    for param, request in [
        ("input", lambda: create(model="scripted")),
        ("temperature", lambda: create(model="scripted", input="a", temperature="hot")),
        ("text.verbosity", lambda: create(model="scripted", input="a", text={"verbosity": "high"})),
        ("input[0].type", lambda: create(model="scripted", input=[{"type": "odd"}])),
        ("tools[0].type", lambda: create(model="scripted", input="a", tools=[{"type": "web_search"}])),
        ("made_up", lambda: create(model="scripted", input="a", extra_body={"made_up": 1})),
        ("messages", lambda: complete(model="scripted", messages=7)),
        ("messages[0].role", lambda: complete(model="scripted", messages=[{"content": "a"}])),
        ("n", lambda: complete(model="scripted", messages=say, n=2)),
        ("input[0].content[0].image_url", lambda: create(model="scripted", input=[{"role": "user", "content": [{"type": "input_image", "image_url": "https://a.example/x.png"}]}])),
    ]:
        error = refused(400, "INVALID_REQUEST", request)
        assert error.param == param, (error.param, param, str(error))
    other = "resp_01900000-0000-7000-8000-000000000001_1"
    refused(404, "SESSION_NOT_FOUND", lambda: client.responses.retrieve(other))
    refused(404, "ITEM_NOT_FOUND", lambda: client.responses.retrieve("resp_123"))
    refused(404, "SESSION_NOT_FOUND", lambda: create(model="scripted", input="a", previous_response_id=other))
    refused(413, "PAYLOAD_TOO_LARGE", lambda: create(model="scripted", input="a" * 10_000_000))


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def main():
    with Server() as client:
        for part in (models, responses, streamed, parsed, background, conversations, chats, bad):
            part(client)
            print("ok:", part.__name__, flush=True)
        first = client.responses.create(model="scripted", input="@say One.")
        asked = client.responses.create(
            model="scripted", input='@call weather {"city":"Rome"} @echo last_result', tools=[WEATHER], previous_response_id=first.id
        )
        call = asked.output[0]
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Rome"})
    # The server was killed; the call still waits.
    with Server() as client:
        assert client.responses.retrieve(asked.id).model_dump() == asked.model_dump()
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
        again = []
        for _ in range(2):
            done = client.responses.create(
                model="scripted", input=[output], tools=[WEATHER], previous_response_id=asked.id
            )
            assert done.output_text == "last_result: Sunny.", done
            again.append(done.id)
        assert again[0] == again[1], "the same answer again is the same response"
        other = {**output, "output": "Rain."}
        refused(409, "IDEMPOTENCY_CONFLICT", lambda: client.responses.create(model="scripted", input=[other], previous_response_id=asked.id))
        # Elsewhere than at the head it forks; several at once all succeed; a key is one response.
        for base in (first, client.responses.create(model="scripted", input="@say One.")):
            made = []

            def go_on(key):
                made.append(client.responses.create(
                    model="scripted", input="@echo messages", previous_response_id=base.id,
                    extra_headers={"Idempotency-Key": key} if key else None,
                ))

            threads = [threading.Thread(target=go_on, args=(key,)) for key in (None, None, "key-1", "key-1")]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            assert {response.output_text for response in made} == {"messages: 3"}, made
            assert len(made) == 4 and len({response.id for response in made}) == 3, [response.id for response in made]
    print("ok: after a kill, forks and keys")


main()
