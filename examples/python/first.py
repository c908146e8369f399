"""A first program: the model calls a function of ours, and answers with a value of our type."""

from dataclasses import dataclass

from meerkat import Meerkat, tool


@tool(effect="read_only")
def weather(city: str) -> str:
    """Weather of a city, now."""
    return f"{city}: 21 degrees, rain"


@dataclass
class Advice:
    umbrella: bool
    why: str


with Meerkat() as meerkat:
    session = meerkat.session(tools=[weather])
    # The scripted model does what the prompt says. Of a real one ask: "Do I need an umbrella in Oslo?"
    prompt = '@call weather {"city":"Oslo"} @json {"umbrella":true,"why":"It rains."}'
    result = session.run(prompt, output=Advice).completed()
    print("umbrella:", result.output.umbrella, "because:", result.output.why)
