"""JSON Schemas from type hints, and values of these types from JSON."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Schema = dict[str, Any]
Load = Callable[[Any], Any]
PLAIN: dict[Any, tuple[str, Load]] = {
    str: ("string", str),
    # Of a JSON Schema 3.0 is an integer, and 3 a number.
    int: ("integer", int),
    float: ("number", float),
    bool: ("boolean", bool),
    type(None): ("null", lambda value: None),
    None: ("null", lambda value: None),
    list: ("array", list),
    dict: ("object", dict),
}


class Shapes:
    """Reads hints. What their parts define for all of them (`$defs`) is collected in `definitions`."""

    def __init__(self) -> None:
        self.definitions: Schema = {}
        self.open: list[Any] = []

    def root(self, hint: Any, where: str) -> tuple[Schema, Load]:
        """The schema of a hint with its definitions, and what makes a value of that type from JSON."""
        schema, load = self.of(hint, where)
        return schema | ({"$defs": self.definitions} if self.definitions else {}), load

    def of(self, hint: Any, where: str) -> tuple[Schema, Load]:
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is Any or hint is object:
            return {}, lambda value: value
        if hint in PLAIN:
            return {"type": PLAIN[hint][0]}, PLAIN[hint][1]
        if origin in (NotRequired, Required):
            return self.of(arguments[0], where)
        if origin is Annotated:
            schema, load = self.of(arguments[0], where)
            texts = [one for one in arguments[1:] if isinstance(one, str)]
            return schema | ({"description": texts[0]} if texts else {}), load
        if origin is Literal:
            return {"enum": list(arguments)}, lambda value: value
        if origin in (list, Sequence):
            schema, load = self.of(arguments[0], where)
            return {"type": "array", "items": schema}, lambda value: [load(one) for one in value]
        if origin in (dict, Mapping) and arguments[0] is str:
            schema, load = self.of(arguments[1], where)
            return (
                {"type": "object", "additionalProperties": schema},
                lambda value: {key: load(one) for key, one in value.items()},
            )
        if origin in (Union, types.UnionType):
            return self.union(arguments, where)
        if hasattr(hint, "model_json_schema") and hasattr(hint, "model_validate"):
            schema = hint.model_json_schema()
            self.definitions |= schema.pop("$defs", {})
            return schema, hint.model_validate
        if is_typeddict(hint) or (dataclasses.is_dataclass(hint) and isinstance(hint, type)):
            return self.fields(hint, where)
        known = "Use plain types, lists, dicts with str keys, Literal, TypedDict, a dataclass or a pydantic model"
        raise TypeError(f"{where}: there is no JSON Schema for {hint!r}. {known}, or give the schema yourself.")

    def union(self, arguments: tuple[Any, ...], where: str) -> tuple[Schema, Load]:
        """A value that may be of several types: its JSON must say which, so at most one of them is a class."""
        parts = [self.of(one, where) for one in arguments]
        given = [load for one, (_, load) in zip(arguments, parts, strict=True) if one not in (None, type(None))]
        loads = [
            load
            for one, (_, load) in zip(arguments, parts, strict=True)
            if one not in PLAIN and get_origin(one) is not Literal
        ]
        if len(loads) > 1 or (loads and any(one not in (None, type(None)) and one in PLAIN for one in arguments)):
            raise TypeError(f"{where}: which of {arguments} a value is cannot be seen in it. Give the schema yourself.")

        if len(given) == 1:
            loads = given

        def load(value: Any) -> Any:
            return loads[0](value) if loads and value is not None else value

        return {"anyOf": [schema for schema, _ in parts]}, load

    def fields(self, hint: Any, where: str) -> tuple[Schema, Load]:
        """A TypedDict or a dataclass: an object with these properties and no others."""
        if hint in self.open:
            raise TypeError(f"{where}: {hint.__name__} is a part of its own parts. Give the schema yourself.")
        self.open.append(hint)
        hints = get_type_hints(hint, include_extras=True)
        if is_typeddict(hint):
            # With `from __future__ import annotations` the class does not know which are `NotRequired`.
            required = [
                name
                for name, one in hints.items()
                if get_origin(one) is Required
                or (name in hint.__required_keys__ and get_origin(one) is not NotRequired)
            ]
            make: Callable[..., Any] = dict
        else:
            fields = [field for field in dataclasses.fields(hint) if field.init]
            hints = {field.name: hints[field.name] for field in fields}
            missing = dataclasses.MISSING
            required = [one.name for one in fields if one.default is missing and one.default_factory is missing]
            make = hint
        schema, loads = self.properties(hints, required, where)
        self.open.pop()
        return schema, lambda value: make(**loads(value))

    def properties(self, hints: Mapping[str, Any], required: Sequence[str], where: str) -> tuple[Schema, Load]:
        """An object, and what makes each of its values."""
        parts = {name: self.of(hint, f"{where}, {name}") for name, hint in hints.items()}
        schema = {
            "type": "object",
            "properties": {name: schema for name, (schema, _) in parts.items()},
            "required": list(required),
            "additionalProperties": False,
        }
        return schema, lambda value: {name: parts[name][1](one) for name, one in value.items()}


def shape(hint: Any, where: str) -> tuple[Schema, Load]:
    """The schema of a type, and what makes a value of it from JSON."""
    return Shapes().root(hint, where)


def parameters(
    function: Callable[..., Any], name: str, special: type, given: Schema | None
) -> tuple[Schema, Load, str | None]:
    """The schema of a function's arguments, what makes them from JSON, and the parameter of the type `special`.

    given: The schema, if it is not to be made of the type hints: JSON is then passed as it is.
    """
    hints, required, taken = get_type_hints(function, include_extras=True), [], None
    found, is_open = {}, False
    for parameter in inspect.signature(function).parameters.values():
        if given is not None and parameter.kind == parameter.VAR_KEYWORD:
            is_open = True
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"the tool {name}: {parameter} cannot be passed by its name. Write it as a usual argument.")
        if parameter.name == "self":
            raise TypeError(f"the tool {name} is a method: decorate the bound method, as in `tool(object.{name})`.")
        if given is not None:
            hints.setdefault(parameter.name, Any)
        if parameter.name not in hints:
            raise TypeError(f"the tool {name}: {parameter.name} has no type. Write one, as in `{parameter.name}: str`.")
        if hints[parameter.name] is special:
            taken = parameter.name
            continue
        found[parameter.name] = hints[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    if given is not None:
        properties = given.get("properties", {})
        for one in properties:
            if one not in found and not is_open:
                raise TypeError(f"the tool {name}: its schema has {one!r}, so the function needs a parameter {one!r}.")
        for one in required:
            if one not in properties:
                raise TypeError(
                    f"the tool {name}: {one!r} is no property of its schema. Each property is a keyword argument."
                )
        return given, dict, taken
    shapes = Shapes()
    schema, load = shapes.properties(found, required, f"the tool {name}")
    return schema | ({"$defs": shapes.definitions} if shapes.definitions else {}), load, taken
