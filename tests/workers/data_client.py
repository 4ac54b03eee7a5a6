"""A client of the SQL tools for one user and session, for their tests."""

import contextlib

from toolbus_workers.data_analysis import DataAnalysis
from toolbus_workers.data_sessions import Limits

from toolbus import ToolBus, Worker

SALES = "region,amount\nnorth,10\nsouth,20\nnorth,5\n"


class Client:
    """A bus with the service behind it, as one user in one session."""

    def __init__(self, bus, service, user="alice", session="one"):
        self.bus = bus
        self.service = service
        self.who = {"user": user, "session": session}

    def other(self, **who):
        return Client(self.bus, self.service, **{**self.who, **who})

    async def call(self, tool, timeout=30, **arguments):
        return await self.bus.call(tool, arguments, timeout=timeout, **self.who)

    async def sql(self, statement, timeout=30):
        return await self.call("data_analysis", timeout, sql=statement)

    async def upload(self, table, content, **arguments):
        return await self.call("data_upload", table=table, content=content, **arguments)


@contextlib.asynccontextmanager
async def serving(address="memory://", namespace="default", **limits):
    service = DataAnalysis(Limits(**limits))
    async with Worker(service, url=address, namespace=namespace), ToolBus(address, namespace=namespace) as bus:
        await bus.wait_for_tool("data_analysis", 10)
        yield Client(bus, service)
    assert service.statistics() == (0, 0)
