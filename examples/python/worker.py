"""A program that may be killed at any time. Started again, it goes on with the turn that it has begun.

With a server's address and token in MEERKAT_URL and MEERKAT_TOKEN: python examples/python/worker.py PROMPT
"""

import os
import sys
import time

from meerkat import Call, Meerkat, tool


@tool
def pay_back(order: str, call: Call) -> str:
    """Pays an order back."""
    # If this program is killed here, the next one makes the same call again. So the bank gets the call's id: it pays
    # once for each.
    return bank(order, reference=f"{call.session_id}/{call.call_id}")


def bank(order: str, reference: str) -> str:
    """Plays a slow bank, which pays when the file `open` is there."""
    with open("asked", "a") as asked:
        asked.write(f"{os.getpid()} {reference}\n")
    while not os.path.exists("open"):
        time.sleep(0.05)
    return f"order {order} is paid back"


def main(prompt: str) -> None:
    meerkat = Meerkat()
    # With the same keys it is the same session and the same turn, however often this program starts.
    session = meerkat.session(key="refunds", tools=[pay_back])
    result = session.run(prompt, key="order-17")
    if result.status == "interrupted":
        # The server was killed while the model answered.
        result = session.resume(key="order-17-again")
    print(result.completed().text)


if __name__ == "__main__":
    main(sys.argv[1])
