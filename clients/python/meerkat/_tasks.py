"""What runs beside a stream, once with `async` and once with threads: the only code that is written twice."""

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ._tools import Tool, Tools, tools_of
from ._wire import log


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
        """Runs a function to its end: one that is not `async` in a thread of its own, as it may take long."""
        if inspect.iscoroutinefunction(function):
            return await function(*arguments, **named)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def work() -> None:
            try:
                outcome: tuple[Any, BaseException | None] = function(*arguments, **named), None
            except BaseException as error:
                outcome = None, error
            try:
                loop.call_soon_threadsafe(give, outcome)
            except RuntimeError:
                log.warning("the program's loop ended while %s ran", function)

        def give(outcome: tuple[Any, BaseException | None]) -> None:
            if not done.cancelled():
                done.set_result(outcome)

        # Not of a pool: functions may wait for each other, and one that runs must not keep the program from its end.
        threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True).start()
        answer, error = await done
        if error:
            raise error
        return await answer if inspect.isawaitable(answer) else answer

    def is_end(self, error: BaseException) -> bool:
        """Is the task at its end, and not only its function? A task that the function waits for may be cancelled."""
        task = asyncio.current_task()
        return isinstance(error, KeyboardInterrupt | GeneratorExit) or bool(task and task.cancelling())

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
        """Calls a function, which is not `async`."""
        answer = function(*arguments, **named)
        if inspect.iscoroutine(answer):
            answer.close()
        if inspect.isawaitable(answer):
            raise TypeError(f"{function} is async: use AsyncMeerkat, or write it without async")
        return answer

    run = call

    def is_end(self, error: BaseException) -> bool:
        """Whatever a function raises in its thread is an error of the function."""
        return False

    def close(self) -> None:
        """Lets what runs go on: a thread cannot be ended."""
