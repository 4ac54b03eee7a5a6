"""Work for the processor, in a pool of child processes that survives a crash of one. Runs by itself, without a server.

`toolbus worker processes.py --processes 4` serves the same tools by four workers, each with children of its own.
"""

import asyncio
import os

from toolbus import Settings, ToolBus, Worker, tool


@tool(effect="read", isolation="process", memory_limit=256 << 20)
def largest_prime(below: int) -> str:
    """Find the largest prime below a number."""
    number = below - 1
    while not all(number % each for each in range(2, int(number**0.5) + 1)):
        number -= 1
    return f"{number}, found by process {os.getpid()}"


@tool(effect="read", isolation="process")
def crash() -> None:
    """Die, as a bug in a C extension would."""
    os.abort()


async def main():
    """Keep two children busy, lose one, and go on."""
    settings = Settings.load(url="memory://", isolated=2)
    async with Worker([largest_prime, crash], settings=settings), ToolBus("memory://") as bus:
        print(f"this is process {os.getpid()}")
        for answer in await asyncio.gather(*(bus.call("largest_prime", {"below": 10**number}) for number in (9, 10, 11))):
            print(answer)
        print(await bus.call("crash"))
        print(await bus.call("largest_prime", {"below": 100}))


if __name__ == "__main__":  # a child imports this file, and must not start a worker of its own
    asyncio.run(main())
