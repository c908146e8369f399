"""Schemas from type hints, values from JSON, and what a tool may return."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from pydantic import BaseModel

from meerkat import Call, file, image, tool
from meerkat._shape import shape
from meerkat._tools import content_of, prompt_of, wanted


@dataclass
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list)


class Named(TypedDict):
    name: str
    at: NotRequired[Point]


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
    assert content_of(Point(1)) == [{"type": "json", "value": {"x": 1, "y": 0.0, "tags": []}}]


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
