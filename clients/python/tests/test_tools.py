"""Schemas from type hints, values from JSON, and what a tool may return."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from pydantic import BaseModel

from meerkat import Call, MeerkatError, file, image, tool
from meerkat._shape import shape
from meerkat._tools import content_of, prompt_of, tools_of, wanted


@dataclass
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list)


class Named(TypedDict):
    name: str
    at: NotRequired[Point]


class Color(Enum):
    RED = "red"


class Inner(BaseModel):
    n: int


class Model(BaseModel):
    inner: Inner


@dataclass
class Endless:
    more: Endless | None


OBJECT = {"type": "object", "additionalProperties": False}
POINT = OBJECT | {
    "properties": {
        "x": {"type": "number"},
        "y": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["x"],
}


@pytest.mark.parametrize(
    ("hint", "schema", "given", "made"),
    [
        (str, {"type": "string"}, "a", "a"),
        # Of a JSON Schema 3.0 is an integer, and 3 a number.
        (int, {"type": "integer"}, 3.0, 3),
        (float, {"type": "number"}, 3, 3.0),
        (bool, {"type": "boolean"}, True, True),
        (Any, {}, [1, {}], [1, {}]),
        (list, {"type": "array"}, [1], [1]),
        (Literal["a", 2], {"enum": ["a", 2]}, 2, 2),
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}, 1, 1),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3.0, 3),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": 1}),
        (Point, POINT, {"x": 1}, Point(1.0)),
        (list[Point], {"type": "array", "items": POINT}, [{"x": 1}], [Point(1.0)]),
        (Point | None, {"anyOf": [POINT, {"type": "null"}]}, {"x": 1}, Point(1.0)),
        (
            Named,
            OBJECT | {"properties": {"name": {"type": "string"}, "at": POINT}, "required": ["name"]},
            {"name": "a", "at": {"x": 1, "y": 2}},
            {"name": "a", "at": Point(1.0, 2.0)},
        ),
    ],
)  # fmt: skip
def test_types(hint: Any, schema: Any, given: Any, made: Any) -> None:
    derived, load = shape(hint, "here")
    assert derived == schema
    loaded = load(given)
    assert loaded == made and type(loaded) is type(made)


def test_pydantic_models_are_taken_with_their_definitions() -> None:
    @tool
    def save(model: Model, others: list[Model]) -> None:
        """Saves."""

    schema = save.definition["input_schema"]
    assert set(schema["$defs"]) == {"Inner"}
    assert schema["properties"]["model"]["properties"] == {"inner": {"$ref": "#/$defs/Inner"}}
    loaded = save.load({"model": {"inner": {"n": 1}}, "others": []})
    assert loaded == {"model": Model(inner=Inner(n=1)), "others": []}
    assert content_of(Model(inner=Inner(n=1))) == [{"type": "json", "value": {"inner": {"n": 1}}}]


@pytest.mark.parametrize("hint", [bytes, set[str], dict[int, str], Point | Named, Point | int, Endless, complex])
def test_other_types_ask_for_a_schema(hint: Any) -> None:
    with pytest.raises(TypeError, match="here.*the schema yourself"):
        shape(hint, "here")


def test_a_tool_is_the_function_and_its_definition() -> None:
    @tool(effect="read_only", timeout_ms=5)
    def add(a: int, b: Annotated[int, "The second."] = 1) -> int:
        """Adds.

        It adds two numbers.
        """
        return a + b

    assert add(1, b=2) == 3
    assert add.definition == {
        "name": "add",
        "description": "Adds.\n\nIt adds two numbers.",
        "input_schema": OBJECT
        | {
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "description": "The second."}},
            "required": ["a"],
        },
        "effect": "read_only",
        "timeout_ms": 5,
    }


def test_a_tool_with_a_schema_of_its_own_gets_the_json() -> None:
    schema = {"type": "object", "properties": {"when": {"type": "string"}}}

    @tool(name="later", description="Waits.", schema=schema)
    def function(**arguments: Any) -> Any:
        return arguments

    assert function.definition == {"name": "later", "description": "Waits.", "input_schema": schema}
    call = Call("s", 0, "call_1", "later", {"when": "now"})
    assert function.named(call) == {"when": "now"}


def test_a_schema_and_its_function_fit() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}

    @tool(schema=schema)
    def with_a_call(x, call: Call):  # type: ignore[no-untyped-def]
        """Does."""

    call = Call("s", 0, "call_1", "with_a_call", {"x": 1})
    assert with_a_call.named(call) == {"x": 1, "call": call}

    def takes_a_dict(arguments: dict[str, Any]) -> None:
        """Does."""

    def takes_nothing() -> None:
        """Does."""

    for function, what in ((takes_a_dict, "'x'"), (takes_nothing, "'x'")):
        with pytest.raises(TypeError, match=f"needs a parameter {what}"):
            tool(schema=schema)(function)
    with pytest.raises(TypeError, match="'arguments' is no property"):
        tool(schema={"type": "object"})(takes_a_dict)
    # The server says what is wrong with it.
    assert tool(schema={})(takes_nothing).definition["input_schema"] == {}


def test_a_method_is_decorated_when_it_is_bound() -> None:
    class Shop:
        def price(self, number: int) -> int:
            """Price of a thing."""
            return number

    with pytest.raises(TypeError, match=r"tool\(object.price\)"):
        tool(Shop.price)
    assert tool(Shop().price).definition["input_schema"]["required"] == ["number"]


def test_wrong_inputs_say_what_to_pass() -> None:
    def one() -> None:
        """Does."""

    for given, what in ((one, r"tools=\[f\]"), (tool(one), r"tools=\[f\]"), (["one"], "server_tools")):
        with pytest.raises(TypeError, match=what):
            tools_of(given)  # type: ignore[arg-type]
    for prompt in (None, b"abc", 5, {"type": "text"}):
        with pytest.raises(TypeError, match="a prompt is a text"):
            prompt_of(prompt)  # type: ignore[arg-type]
    with pytest.raises(MeerkatError) as refused:
        image(b"a text")
    assert refused.value.code == "INVALID_REQUEST"


def test_a_call_is_no_argument_for_the_model() -> None:
    @tool
    def note(text: str, call: Call) -> None:
        """Notes."""

    assert note.definition["input_schema"]["properties"] == {"text": {"type": "string"}}
    call = Call("s", 0, "call_1", "note", {"text": "a"})
    assert note.named(call) == {"text": "a", "call": call}


def test_functions_that_cannot_be_tools_say_why() -> None:
    def without_a_type(a):  # type: ignore[no-untyped-def]
        """Does."""

    def without_a_docstring(a: int) -> None: ...

    def with_a_rest(*a: int) -> None:
        """Does."""

    for function, what in ((without_a_type, "has no type"), (without_a_docstring, "docstring"), (with_a_rest, "name")):
        with pytest.raises(TypeError, match=what):
            tool(function)


def test_what_a_tool_returns() -> None:
    picture = image(b"GIF89a")
    assert content_of(None) == []
    assert content_of("a") == [{"type": "text", "text": "a"}]
    assert content_of(["a", "b"]) == [{"type": "json", "value": ["a", "b"]}]
    assert content_of(["a", picture]) == [{"type": "text", "text": "a"}, picture]
    assert content_of(picture) == [picture]
    assert content_of({"type": "text", "text": "a", "more": 1}) == [
        {"type": "json", "value": {"type": "text", "text": "a", "more": 1}}
    ]
    point = {"x": 1, "y": 0.0, "tags": []}
    assert content_of(Point(1)) == [{"type": "json", "value": point}]
    assert content_of([Point(1)]) == [{"type": "json", "value": [point]}]
    parts = {"a": Point(1), "b": (Inner(n=1), Color.RED)}
    assert content_of(parts) == [{"type": "json", "value": {"a": point, "b": [{"n": 1}, "red"]}}]
    for wrong in ({1, 2}, float("nan"), {(1, 2): 3}, [object()]):
        with pytest.raises(TypeError, match="not JSON.*: return a text"):
            content_of(wrong)


def test_prompts() -> None:
    assert prompt_of("a") == "a"
    assert prompt_of(["a", image(b"\xff\xd8\xff")]) == [
        {"type": "text", "text": "a"},
        {"type": "image", "media_type": "image/jpeg", "data": "/9j/"},
    ]
    kinds = {"a.md": "text/markdown", "a.json": "application/json", "a.rs": "text/plain", "a.bin": "text/plain"}
    assert {name: file(b"a", name)["media_type"] for name in kinds} == kinds
    assert file(b"%PDF-1.7", "a")["media_type"] == "application/pdf"
    with pytest.raises(ValueError, match="need a name"):
        file(b"a")


def test_outputs() -> None:
    assert wanted(None)[0] is None
    assert wanted({"type": "object"})[0] == {"schema": {"type": "object"}}
    assert wanted({"schema": {"type": "object"}, "repairs": 0})[0] == {"schema": {"type": "object"}, "repairs": 0}
    spec, load = wanted(Point)
    assert spec == {"schema": POINT} and load(json.loads('{"x": 1}')) == Point(1.0)
