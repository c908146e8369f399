"""Tools that the program runs, and the pieces of prompts and answers: images, files, JSON."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from . import types
from ._shape import Load, Schema, parameters, shape
from ._wire import MeerkatError

P = ParamSpec("P")
R = TypeVar("R")
Output = TypeVar("Output")

IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
# A text in UTF-8, with the types that the server takes for one.
TEXTS = ("application/json", "application/xml", "application/yaml", "application/toml", "application/sql")


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that the model made. A tool with a parameter of this type gets it; the model does not see it."""

    session_id: str
    turn: int
    call_id: str
    name: str
    arguments: dict[str, Any]


class Tool(Generic[P, R]):
    """A function of the program that the model may call. The program calls it as before."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        schema: Schema | None = None,
        effect: types.Effect | None = None,
        timeout_ms: int | None = None,
    ):
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.__doc__ = function.__doc__
        derived, self.load, self.takes_call = parameters(function, self.name, Call, schema)
        described = description or function.__doc__
        if not described:
            raise TypeError(f"the tool {self.name} needs a docstring, which tells the model what it does.")
        self.definition: types.ClientTool = {
            "name": self.name,
            "description": "\n".join(line.strip() for line in described.strip().splitlines()),
            "input_schema": derived,
        }
        if effect:
            self.definition["effect"] = effect
        if timeout_ms:
            self.definition["timeout_ms"] = timeout_ms

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)

    def named(self, call: Call) -> dict[str, Any]:
        """The function's arguments for a call."""
        return dict(self.load(call.arguments)) | ({self.takes_call: call} if self.takes_call else {})


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Schema | None = None,
    effect: types.Effect | None = None,
    timeout_ms: int | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Makes a tool of a function: its docstring tells the model what it does, its type hints are the schema.

    name: The tool's name for the model; the function's if left out.
    description: In place of the docstring.
    schema: A JSON Schema of the arguments, in place of one from the type hints. Its properties are the
        function's keyword arguments, as JSON.
    effect: What running a call again does: `read_only`, `idempotent` or `once`, which is the default.
    timeout_ms: How long a call waits for its answer; a day if left out.
    """
    return Tool(function, **options) if function else lambda function: Tool(function, **options)


Tools = Sequence[Tool[..., Any] | Callable[..., Any]]


def tools_of(given: Tools) -> list[Tool[..., Any]]:
    """The tools; a function that is none becomes one."""
    if isinstance(given, Tool | str) or callable(given):
        raise TypeError("`tools` is a list: write tools=[f] for a function f")
    for one in given:
        if not callable(one):
            raise TypeError(
                f"`tools` has {one!r}: it takes functions. `server_tools` takes names of the server's tools."
            )
    return [one if isinstance(one, Tool) else Tool(one) for one in given]


def image(source: str | Path | bytes) -> types.PromptBlockImage:
    """An image for a prompt, or of a tool's answer: a file's path, or the bytes. PNG, JPEG, GIF or WebP."""
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    media_type = next((kind for magic, kind in IMAGES.items() if data.startswith(magic)), None)
    if media_type is None:
        name = "the bytes" if isinstance(source, bytes) else str(source)
        raise MeerkatError("INVALID_REQUEST", f"{name}: this is not a PNG, JPEG, GIF or WebP image.")
    return {"type": "image", "media_type": media_type, "data": base64.b64encode(data).decode()}


def file(source: str | Path | bytes, name: str | None = None, media_type: str | None = None) -> types.PromptBlockFile:
    """A text file or a PDF for a prompt: a file's path, or the bytes and a name."""
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    name = name or (None if isinstance(source, bytes) else Path(source).name)
    if not name:
        raise ValueError("the bytes of a file need a name")
    if not media_type:
        guessed = "application/pdf" if data.startswith(b"%PDF") else mimetypes.guess_type(name)[0] or ""
        is_known = guessed.startswith("text/") or guessed in (*TEXTS, "application/pdf")
        media_type = guessed if is_known else "text/plain"
    return {"type": "file", "name": name, "media_type": media_type, "data": base64.b64encode(data).decode()}


Prompt = str | Sequence[str | types.PromptBlock]


def prompt_of(prompt: Prompt) -> types.Prompt:
    """The prompt as the server takes it: texts between images are blocks, too."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Sequence):
        raise TypeError(
            f"a prompt is a text, or a list of texts, image(…) and file(…), and not {type(prompt).__name__}"
        )
    return [{"type": "text", "text": block} if isinstance(block, str) else block for block in prompt]


def content_of(returned: Any) -> list[types.CallContent]:
    """What a tool returned, for the model: a text, blocks of `text` and `image`, or anything else as JSON."""
    if returned is None:
        return []
    if isinstance(returned, str):
        return [{"type": "text", "text": returned}]
    if is_block(returned):
        return [cast(types.CallContent, returned)]
    if isinstance(returned, list) and any(map(is_block, returned)):
        return [part for one in returned for part in content_of(one)]
    return [{"type": "json", "value": plain(returned)}]


def plain(value: Any) -> Any:
    """A value as JSON has it, with the fields of dataclasses and pydantic models."""

    def fields(one: Any) -> Any:
        if isinstance(one, enum.Enum):
            return one.value
        if dataclasses.is_dataclass(one) and not isinstance(one, type):
            return {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
        if hasattr(one, "model_dump"):
            return one.model_dump(mode="json")
        raise TypeError(f"a {type(one).__name__} is in it")

    try:
        return json.loads(json.dumps(value, allow_nan=False, default=fields))
    except (TypeError, ValueError, RecursionError) as error:
        name = type(value).__name__
        raise TypeError(
            f"a {name} was returned that is not JSON ({error}): return a text, JSON, a dataclass or a picture"
        ) from error


def cleaned(text: str) -> str:
    """A text that can be sent, and that does not fill the model's context."""
    return text[:8000].encode(errors="replace").decode()


def is_block(one: Any) -> bool:
    fields = {"text": {"type", "text"}, "image": {"type", "media_type", "data"}, "json": {"type", "value"}}
    return isinstance(one, dict) and isinstance(one.get("type"), str) and set(one) == fields.get(one["type"])


def wanted(output: type | types.OutputSpec | Mapping[str, Any] | None) -> tuple[types.OutputSpec | None, Load]:
    """The schema for an answer, and what makes the answer from its JSON."""
    if output is None:
        return None, lambda value: value
    if isinstance(output, Mapping):
        is_whole = isinstance(output.get("schema"), Mapping)
        return cast(types.OutputSpec, dict(output) if is_whole else {"schema": dict(output)}), lambda value: value
    schema, load = shape(output, f"the output {getattr(output, '__name__', output)}")
    return {"schema": schema}, load


@dataclasses.dataclass(frozen=True)
class Result(Generic[Output]):
    """How a turn ended. `status` is `completed`, `failed` or `interrupted`; `data` has every field of the server's
    answer."""

    status: types.TurnStatus
    text: str
    output: Output
    error: MeerkatError | None
    cost: types.Cost | None
    usage: types.Usage
    turn: int
    data: types.TurnResult = dataclasses.field(repr=False)

    @classmethod
    def of(cls, data: types.TurnResult, load: Load) -> Result[Any]:
        """The result that an answer of the server says."""
        output = load(data["output"]) if data["output"] is not None else None
        error = MeerkatError.of(data["error"]) if data["error"] else None
        return Result(
            data["status"], data["text"], output, error, data["cost"], data["usage"], data["turn"], data
        )  # fmt: skip

    def completed(self) -> Result[Output]:
        """Returns the result itself, or raises the error of a turn that did not complete."""
        if self.error and self.status != "completed":
            raise self.error
        return self
