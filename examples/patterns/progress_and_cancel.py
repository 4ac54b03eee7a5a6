"""A long tool that says how far it is, and stops soon after its caller has left. Runs by itself, without a server."""

import asyncio
import time

from toolbus import Progress, ToolBus, Worker, invocation, tool


@tool(effect="read")
async def index(pages: int):
    """Index the pages of a book, one after the other."""
    done = 0
    try:
        while done < pages:
            await asyncio.sleep(0.1)  # the work: a cancellation arrives here, as an asyncio.CancelledError
            done += 1
            yield Progress(done, pages, f"indexed page {done}")
    finally:
        print(f"index: cleaned up after page {done}")


@tool(effect="read")
def count_primes(below: int) -> int:
    """Count the primes below a number, in a thread, which nobody can stop: it asks by itself whether to go on."""
    found = 0
    for number in range(2, below):
        if number % 1000 == 0:
            invocation().check_cancelled()  # raises when the caller has left, or the time is up
            time.sleep(0.001)
        found += all(number % each for each in range(2, int(number**0.5) + 1))
    return found


async def main():
    """Follow a call, leave it in the middle, and give another one too little time."""
    async with Worker([index, count_primes], url="memory://"), ToolBus("memory://") as bus:
        async with bus.stream("index", {"pages": 600}) as call:
            async for event in call.events():
                if isinstance(event, Progress):
                    print(f"{event.done:.0f} of {event.total:.0f}: {event.message}")
                    if event.done == 3:
                        break  # leaving the block cancels the call

        result = await bus.call("count_primes", {"below": 100_000_000}, timeout=1)
        print(result)


asyncio.run(main())
