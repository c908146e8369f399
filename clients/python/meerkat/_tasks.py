"""What runs beside a stream, once with `async` and once with threads: the only code that is written twice."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ._tools import Tool, Tools, tools_of


class AsyncTasks:
    """Runs functions as tasks of the event loop."""

    sleep = staticmethod(asyncio.sleep)
    tools = staticmethod(tools_of)

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()

    def start(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Runs a function beside the caller."""
        task = asyncio.create_task(function(*arguments))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function that may be `async`, and that is quick if it is not."""
        answer = function(*arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Runs a function to its end: one that is not `async` in a thread, as it may take long."""
        if inspect.iscoroutinefunction(function):
            return await function(*arguments, **named)
        return await asyncio.to_thread(function, *arguments, **named)

    def close(self) -> None:
        """Ends what runs."""
        for task in self.running:
            task.cancel()


class Tasks:
    """Runs functions in threads. They end with the program."""

    sleep = staticmethod(time.sleep)

    def start(self, function: Callable[..., None], *arguments: Any) -> None:
        """Runs a function beside the caller."""
        threading.Thread(target=function, args=arguments, daemon=True).start()

    @staticmethod
    def tools(given: Tools) -> list[Tool[..., Any]]:
        """The tools, none of which is `async`."""
        tools = tools_of(given)
        for tool in tools:
            if inspect.iscoroutinefunction(tool.function):
                raise TypeError(f"the tool {tool.name} is async: use AsyncMeerkat, or write it without async")
        return tools

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Calls a function."""
        return function(*arguments, **named)

    run = call

    def close(self) -> None:
        """Lets what runs go on: a thread cannot be ended."""
