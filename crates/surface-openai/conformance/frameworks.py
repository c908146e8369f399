"""Drives meerkat with the Agents SDK of OpenAI, LangChain and LiteLLM: one flow with a function each."""

import asyncio

import litellm
from agents import Agent, RunConfig, Runner, SQLiteSession, function_tool, set_default_openai_client, set_tracing_disabled
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from server import TOKEN, Server

ASK = '@call weather {"city":"Rome"} @echo last_result'
CALLED = "last_result: Sunny in Rome."


@function_tool
def weather(city: str) -> str:
    """Weather of a city."""
    return f"Sunny in {city}."


async def agents(url):
    set_default_openai_client(AsyncOpenAI(base_url=url, api_key=TOKEN, max_retries=0))
    set_tracing_disabled(True)
    agent = Agent(name="Forecaster", instructions="Be brief.", model="scripted", tools=[weather])
    session = SQLiteSession("weather")
    ended = await Runner.run(agent, ASK, session=session)
    assert ended.final_output == CALLED, ended.final_output
    # What was said before is in the next request.
    ended = await Runner.run(agent, "@echo messages", session=session)
    assert ended.final_output == "messages: 5", ended.final_output
    # The server keeps what was said, too.
    config = RunConfig()
    first = await Runner.run(agent, ASK, run_config=config, auto_previous_response_id=True)
    assert first.final_output == CALLED, first.final_output
    second = await Runner.run(agent, "@echo messages", previous_response_id=first.last_response_id)
    assert second.final_output == "messages: 5", second.final_output
    streamed = Runner.run_streamed(agent, ASK)
    text = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    assert text == streamed.final_output == CALLED, text


def langchain(url):
    @tool
    def weather(city: str) -> str:
        """Weather of a city."""
        return f"Sunny in {city}."

    for uses_responses in (False, True):
        model = ChatOpenAI(model="scripted", base_url=url, api_key=TOKEN, max_retries=0, use_responses_api=uses_responses)
        model = model.bind_tools([weather])
        said = [("user", ASK)]
        asked = model.invoke(said)
        [call] = asked.tool_calls
        done = model.invoke([*said, asked, weather.invoke(call)])
        assert done.text == CALLED, done
        assert "".join(chunk.text for chunk in model.stream("@say One two.")) == "One two."


def lite(url):
    named = {"model": "openai/scripted", "api_base": url, "api_key": TOKEN, "num_retries": 0}
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": schema}}]
    said = [{"role": "user", "content": ASK}]
    asked = litellm.completion(messages=said, tools=tools, **named).choices[0].message
    [call] = asked.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny in Rome."}
    done = litellm.completion(messages=[*said, asked.model_dump(), result], tools=tools, **named)
    assert done.choices[0].message.content == CALLED, done
    streamed = litellm.completion(messages=[{"role": "user", "content": "@say One two."}], stream=True, **named)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == "One two."
    assert litellm.responses(input="@say Hello.", **named).output[0].content[0].text == "Hello."


with Server() as client:
    url = str(client.base_url)
    asyncio.run(agents(url))
    print("ok: agents", flush=True)
    langchain(url)
    print("ok: langchain", flush=True)
    lite(url)
    print("ok: litellm", flush=True)
