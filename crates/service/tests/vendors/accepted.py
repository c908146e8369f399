"""Checks request bodies by the types of the vendors' own Python packages: a field that a package does not know, or a
value of another type, fails. Its argument is a folder of files, each a request as JSON with its path and its body."""

import importlib
import json
import pathlib
import pkgutil
import sys
from collections.abc import Iterator

import anthropic.types
import openai.types
import pydantic
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from google.genai import types as google
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from typing_extensions import is_typeddict

STRICT = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)


def forbid_unknown_fields(package) -> None:
    """By default pydantic passes over them. A request may also hold blocks of an answer, which are models."""
    models = set()
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        for value in vars(importlib.import_module(found.name)).values():
            if is_typeddict(value):
                value.__pydantic_config__ = STRICT
            elif isinstance(value, type) and issubclass(value, pydantic.BaseModel):
                value.model_config["extra"] = "forbid"
                models.add(value)
    for model in models:
        model.model_rebuild(force=True)


def read_to_the_end(value) -> None:
    """Items of an `Iterable` are checked when they are read."""
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, str | bytes) or not isinstance(value, list | Iterator):
        return
    for item in value:
        read_to_the_end(item)


def typed(params):
    adapter = pydantic.TypeAdapter(params)
    return lambda body: read_to_the_end(adapter.validate_python(body, strict=False))


# The package has types for the parts, which take the wire's names and refuse others, and none for the whole.
REQUEST = pydantic.create_model(
    "GenerateContentRequest",
    __config__=pydantic.ConfigDict(extra="forbid"),
    contents=list[google.Content],
    systemInstruction=(google.Content | None, None),
    tools=(list[google.Tool] | None, None),
    toolConfig=(google.ToolConfig | None, None),
    generationConfig=(google.GenerationConfig | None, None),
    safetySettings=(list[google.SafetySetting] | None, None),
    cachedContent=(str | None, None),
)


def gemini(body) -> None:
    # Bytes are base64 in JSON alone.
    REQUEST.model_validate_json(json.dumps(body))


def without_known_differences(path: str, body):
    """Three things are not in the packages, and in the vendors' protocols."""
    if path == "/v1/messages" and any(version in body["model"] for version in ("-4-5", "-4-6")):
        # The newer models refuse both, so the package has dropped them; the older ones take them.
        body.pop("temperature", None)
        body.pop("top_p", None)
    if "provider" in body:
        # OpenRouter's own fields.
        body.pop("provider")
        body.pop("reasoning", None)
    if path == "/v1/responses":
        # Of an answer that nothing is stored of, the text and the hidden reasoning are sent back alone.
        for item in body["input"]:
            if item.get("type") == "reasoning":
                item.setdefault("id", "rs_1")
            if item.get("type") == "message" and item["role"] == "assistant":
                item.setdefault("id", "msg_1")
                item.setdefault("status", "completed")
                for part in item["content"]:
                    part.setdefault("annotations", [])
    return body


def main() -> int:
    forbid_unknown_fields(openai.types)
    forbid_unknown_fields(anthropic.types)
    checks = {
        "/v1/messages": typed(MessageCreateParamsStreaming),
        "/v1/chat/completions": typed(CompletionCreateParamsStreaming),
        "/v1/responses": typed(ResponseCreateParamsStreaming),
        ":streamGenerateContent": gemini,
    }
    checked = dict.fromkeys(checks, 0)
    failed = 0
    for file in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        request = json.loads(file.read_text())
        [name] = [name for name in checks if name in request["path"]]
        checked[name] += 1
        try:
            checks[name](without_known_differences(request["path"], request["body"]))
        except pydantic.ValidationError as error:
            failed += 1
            # Of a union each member has errors; those that came furthest say most.
            worst = sorted(error.errors(include_url=False), key=lambda found: -len(found["loc"]))[:5]
            says = [f"{'.'.join(map(str, found['loc'][-3:]))}: {found['msg']}" for found in worst]
            print(f"{file.name}, {request['path']}:", *says, json.dumps(request["body"])[:2000], sep="\n  ")
    print(f"{sum(checked.values())} requests, {failed} refused: {checked}")
    return int(failed > 0 or 0 in checked.values())


if __name__ == "__main__":
    sys.exit(main())
