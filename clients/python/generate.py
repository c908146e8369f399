"""Writes the generated files of the package: the types, a method for each operation, and the client without `async`.

`python generate.py` writes them, `python generate.py --check` says if one is not current. The types and the operations
come from docs/openapi.json; the operations' names, and which of them may be repeated, from the server's own table.
"""

import json
import keyword
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKAGE = HERE / "meerkat"
HEAD = "# Made by generate.py. Do not edit.\n"
PLAIN = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
}
# An operation whose name the package needs for the whole of it: `Session.resume` waits for the turn's end.
RENAMED = {"resume": "resume_turn"}
# The requests that `Session.run` and `Meerkat.session` take, and the fields that these have under names of their own.
FIELDS = {
    "create_session": ("SessionFields", frozenset({"client_tools", "tools"})),
    "start_turn": ("TurnFields", frozenset({"prompt", "client_tools", "output"})),
}

document = json.loads((ROOT / "docs/openapi.json").read_text())
schemas = document["components"]["schemas"]
classes: dict[str, str] = {}


def camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name))


def text(words: str, indent: str) -> str:
    """A docstring in lines of at most 120 characters."""
    lines, line = [], indent + '"""'
    for word in words.replace("\\", "\\\\").split():
        if len(line) + len(word) > 115:
            lines.append(line.rstrip())
            line = indent
        line += word + " "
    return "\n".join([*lines, line.rstrip() + '"""'])


def union(types: list[str]) -> str:
    """Says `None` last, and nothing twice."""
    return " | ".join(
        dict.fromkeys([*(one for one in types if one != "None"), *(one for one in types if one == "None")])
    )


def of(schema: dict[str, Any], name: str) -> str:
    """The type of a schema. A schema with properties becomes a class, by its title or by `name`."""
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    if "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return union([of(part, name + kind(part, number)) for number, part in enumerate(schema[key])])
    if isinstance(schema.get("type"), list):
        return union([of({**schema, "type": one}, name) for one in schema["type"]])
    if schema.get("type") == "array":
        return f"list[{of(schema.get('items', {}), name + 'Item')}]"
    if schema.get("properties"):
        title = schema.get("title", "")
        if title == "Page":
            return f"Page[{of(schema['properties']['items']['items'], name + 'Item')}]"
        return declared(title if title in classes or title in schemas or "Answer" in name and title else name, schema)
    if isinstance(schema.get("additionalProperties"), dict):
        return f"dict[str, {of(schema['additionalProperties'], name + 'Value')}]"
    return PLAIN[schema["type"]] if "type" in schema else "Any"


def kind(part: dict[str, Any], number: int) -> str:
    """What parts of a union are called: by their tag, if they have one."""
    tags = [part.get("properties", {}).get(tag, {}).get("const") for tag in ("type", "role")]
    return camel(next((tag for tag in tags if tag), str(number)))


def declared(name: str, schema: dict[str, Any], without: frozenset[str] = frozenset(), is_total: bool = True) -> str:
    """Declares a class for a schema with properties."""
    if name not in classes:
        classes[name] = ""
        required = schema.get("required", [])
        lines = []
        for field, part in schema["properties"].items():
            # A name such as `from` cannot be written in a class.
            if field not in without and not keyword.iskeyword(field):
                hint = of(part, name + camel(field))
                lines.append(f"    {field}: {hint if field in required and is_total else f'NotRequired[{hint}]'}")
        doc = text(schema["description"], "    ") + "\n\n" if schema.get("description") else ""
        classes[name] = f"@final\nclass {name}(TypedDict):\n{doc}" + "\n".join(lines) + "\n"
    return name


def ordered(aliases: dict[str, str]) -> list[str]:
    """The aliases, each after those that it uses."""
    lines: dict[str, str] = {}

    def add(name: str) -> None:
        for used in re.findall(r"\w+", aliases[name]):
            if used in aliases and used not in lines:
                add(used)
        lines[name] = f"{name}: TypeAlias = {aliases[name]}"

    for name in aliases:
        add(name)
    return list(lines.values())


def operations() -> list[dict[str, Any]]:
    """The operations that have a row in the server's table, in its order."""
    table = (ROOT / "crates/service/words/src/operation.rs").read_text()
    found = {
        operation["operationId"]: {"method": method.upper(), "path": path, **operation}
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    rows = re.findall(r'\w+ "(\w+(?:/\w+)?)" = (\w+)\(.*?\) -> .*?, \w+, \w+, (\w+), \[', table)
    named = []
    for public, name, effect in rows:
        # The preview of a compaction is an argument over REST.
        if operation := found.pop(public.replace("/", "_"), None):
            named.append({**operation, "name": name, "is_repeatable": effect in ("Reads", "Settles")})
    unnamed = [operation["path"] for operation in found.values() if operation["path"].startswith("/v1/")]
    assert not unnamed, f"the server's table of operations has no row for {unnamed}"
    return named


def method(operation: dict[str, Any]) -> str:
    """A method for an operation: the path's and the request's fields are its arguments."""
    name, path = operation["name"], operation["path"].replace("{session_id}", "{self.session_id}", 1)
    is_of_session = path.startswith("/v1/sessions/{")
    if not is_of_session:
        path = operation["path"]
    parameters = operation.get("parameters", [])
    first, rest, query, body, docs = ["self"], [], [], [], []
    headers = {part["name"] for part in parameters if part["in"] == "header"}

    def take(field: str, schema: dict[str, Any], is_required: bool, description: str) -> None:
        hint = of(schema, camel(name) + camel(field))
        # Arguments may be any sequence; in this class `list` is an operation.
        hint = re.sub(r"\blist\[", "Sequence[", re.sub(r"\b([A-Z]\w+)\b", qualified, hint))
        if is_required:
            first.append(f"{field}: {hint}")
        else:
            rest.append(f"{field}: {union([*hint.split(' | '), 'None'])} = None")
        docs.append(f"    {field}: {description}")

    for part in parameters:
        if part["in"] == "path" and not (part["name"] == "session_id" and is_of_session):
            take(part["name"], part["schema"], True, part["description"])
        if part["in"] == "query":
            take(part["name"], part["schema"], part.get("required", False), part["description"])
            query.append(part["name"])
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        schema = content["application/json"]["schema"]
        if name in FIELDS:
            fields, without = FIELDS[name]
            declared(fields, {**schema, "description": f"Further fields of `{name}`."}, without, is_total=False)
        for field, part in schema["properties"].items():
            take(field, part, field in schema.get("required", []), part.get("description", "As for `start_turn`."))
            body.append(field)
    elif content:
        take("content", {"type": "string", "format": "binary"}, True, "The bytes.")
        first[-1] = "content: bytes"
    if "Idempotency-Key" in headers:
        rest.append("key: str | None = None")
        docs.append("    key: The same key with the same request is the same session or turn; a new one if `None`.")

    statuses = operation["responses"]
    answers = statuses["202" if "Prefer" in headers else next(code for code in statuses if code[0] == "2")]["content"]
    answer = "bytes"
    if "application/json" in answers:
        answer = re.sub(r"\b([A-Z]\w+)\b", qualified, of(answers["application/json"]["schema"], camel(name) + "Answer"))
    arguments = [
        f'"{operation["method"]}"',
        ('f"' if "{" in path else '"') + re.sub(r"\{(.*?)\}", r"{quoted(\1)}", path) + '"',
    ]
    for part_of, names in (("query", query), ("body", body)):
        if names or (part_of == "body" and "application/json" in content):
            arguments.append(f"{part_of}={{{', '.join(f'{one!r}: {one}' for one in names)}}}".replace("'", '"'))
    if content and "application/json" not in content:
        arguments.append("content=content")
    if "Idempotency-Key" in headers:
        arguments.append("key=key or new_key()")
    if "Prefer" in headers:
        arguments.append("is_waiting=False")
    if operation["is_repeatable"] and name != "interrupt":
        arguments.append("is_repeatable=True")
    if name == "interrupt":
        # Without a turn it might interrupt the next one.
        arguments.append("is_repeatable=turn is not None")
    signature = ", ".join([*first, *(["*", *rest] if rest else [])])
    lines = [f"    async def {RENAMED.get(name, name)}({signature}) -> {answer}:"]
    described = text(operation["summary"], "        ")
    if docs:
        described = (
            described.removesuffix('"""') + "\n\n" + "\n".join(wrapped(f"    {doc}") for doc in docs) + '\n        """'
        )
    lines += [
        described,
        f"        returned: {answer} = await self._call({', '.join(arguments)})",
        "        return returned",
    ]
    return "\n".join(lines) + "\n"


def qualified(found: re.Match[str]) -> str:
    return found[0] if found[0] in ("Any", "Literal", "Sequence", "None") else f"types.{found[0]}"


def wrapped(line: str) -> str:
    """A long line of a docstring in several, the later ones further in."""
    return text(line.strip(), "            ").replace('"""', "", 1).removesuffix('"""').replace(" " * 12, " " * 8, 1)


def generated() -> dict[Path, str]:
    """The text of every generated file."""
    classes["Page"] = (
        'class Page(TypedDict, Generic[Item]):\n    """Page of a list. `next_cursor` is `None` at the end."""\n\n'
        "    items: list[Item]\n    next_cursor: str | None\n"
    )
    aliases = {}
    for name, schema in schemas.items():
        if schema.get("properties"):
            declared(name, schema)
        else:
            aliases[name] = of(schema, name)
    # Written out: mypy narrows such a union by `"seq" in event`, and not one of two other unions.
    aliases["AnyEvent"] = union([*aliases["Event"].split(" | "), *aliases["LiveEvent"].split(" | ")])
    parted: dict[bool, list[str]] = {True: [], False: []}
    for operation in operations():
        parted[operation["path"].startswith("/v1/sessions/{")].append(method(operation))
    types = (
        f'"""Every request, answer, event and error of the server, as the dictionary that its JSON is."""\n\n{HEAD}\n'
        "from __future__ import annotations\n\n"
        "from typing import Any, Generic, Literal, NotRequired, TypeAlias, TypedDict, TypeVar, final\n\n"
        'Item = TypeVar("Item")\n'
        + "".join(f"\n\n{one}" for one in classes.values())
        + "\n\n"
        + "\n".join(ordered(aliases))
        + "\n"
    )
    methods = (
        f'"""A method for each operation of the server."""\n\n{HEAD}\n'
        "from collections.abc import Sequence\nfrom typing import Any, Literal\n\n"
        "from .. import types\nfrom .._wire import new_key, quoted\n\n\n"
        'class AsyncCaller:\n    """What the operations need."""\n\n'
        "    async def _call(\n        self,\n        method: str,\n        path: str,\n        *,\n"
        "        query: dict[str, Any] | None = None,\n        body: dict[str, Any] | None = None,\n"
        "        content: bytes | None = None,\n        key: str | None = None,\n        is_waiting: bool = True,\n"
        "        is_repeatable: bool = False,\n    ) -> Any:\n        raise NotImplementedError\n\n\n"
        'class AsyncServerOperations(AsyncCaller):\n    """The operations on a server."""\n\n'
        + "\n".join(parted[False])
        + "\n\n"
        'class AsyncSessionOperations(AsyncCaller):\n    """The operations on a session."""\n\n    session_id: str\n\n'
        + "\n".join(parted[True])
    )
    files = {PACKAGE / "types.py": types, PACKAGE / "_async/operations.py": methods}
    for path in sorted((PACKAGE / "_async").glob("*.py")):
        files[PACKAGE / "_sync" / path.name] = without_async(files.get(path) or path.read_text())
    return {path: formatted(path, text) for path, text in files.items()}


def formatted(path: Path, source: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=source, capture_output=True, check=True, text=True, cwd=HERE).stdout


def without_async(source: str) -> str:
    """The same code without `async`: each name in it has a twin."""
    source = re.sub(r"\basync (?=def|for|with)|\bawait ", "", source)
    source = re.sub(r"\b__a(enter|exit|iter|next)__\b", r"__\1__", source)
    source = re.sub(r"\ba(close|closing|iter_bytes|read)\b", r"\1", source)
    source = re.sub(r"\bStopAsyncIteration\b", "StopIteration", source)
    source = re.sub(r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]", source)
    source = re.sub(r"\bAwaitable, | \| Awaitable\[\w+\]", "", source)
    source = re.sub(r"\bAwaitable\[(types\.Page\[Item\])\]", r"\1", source)
    source = re.sub(r"\bAsync(?=[A-Z])", "", source).replace("asynchronous", "plain")
    return source if HEAD in source else source.replace('"""\n\n', f'"""\n\n{HEAD}\n', 1)


def main() -> None:
    stale = {path: text for path, text in generated().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv:
        sys.exit("".join(f"{path.name} is not current: run python clients/python/generate.py\n" for path in stale) or 0)
    for path, written in stale.items():
        path.write_text(written)


if __name__ == "__main__":
    main()
