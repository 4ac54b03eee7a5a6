"""A payment: it runs at most once, a person allows it, and asking twice pays once. Runs by itself, without a server."""

import asyncio

from toolbus import ToolBus, Worker, tool

paid = []


@tool(effect="once", confirm=True)
async def pay(account: str, amount: float) -> str:
    """Pay an amount.

    Args:
        account: who gets the money
        amount: in euros
    """
    paid.append((account, amount))
    return f"paid {amount:.2f} € to {account}"


def ask(request):
    """Stand in for a person, who sees the call as it will run. `toolbus confirm allow` and the page can answer, too."""
    print(request)
    return request.arguments["amount"] < 100


async def main():
    """Let a model pay, twice, and let a program pay once, however often it asks."""
    async with Worker([pay], url="memory://"), ToolBus("memory://") as bus:
        executor = bus.executor(user="alice", confirmer=ask)
        print(await executor.execute("pay", {"account": "bakery", "amount": 12.5}))
        print(await executor.execute("pay", {"account": "casino", "amount": 5000}))

        # Where the answer got lost, ask again with the same key: it finds the first payment's answer.
        for _ in range(3):
            print(await bus.call("pay", {"account": "rent", "amount": 80}, user="alice", idempotency_key="rent-2031-05"))
        print(paid)


asyncio.run(main())
