"""Connections and clients: each tries once, whatever the URL asks for, and dead or silent nodes cost little."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
import redis
from redis.asyncio.connection import parse_url

from toolbus.bus.broker.transport import clients
from toolbus.bus.broker.transport import discovery as ask_nodes
from toolbus.bus.broker.transport.discovery import AskPolicy, ask_each
from toolbus.bus.broker.transport.embedded import HOST, free_port


@pytest.mark.parametrize("url", ["redis://host", "rediss://host", "unix:///socket", "redis://host?retry_on_timeout=yes"])
def test_nothing_is_tried_twice_below_us(url: str) -> None:
    """Neither connections nor clients retry, for no kind of URL."""
    made = clients.connection(parse_url(url))
    assert made.retry.get_retries() == 0
    pool = redis.ConnectionPool(connection_class=clients._SYNCHRONOUS[type(made)], **clients._given(parse_url(url))[1])
    assert pool.make_connection().retry.get_retries() == 0


def test_a_client_tries_a_dead_server_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is an error at once, after one attempt."""
    attempts = []
    connect = socket.socket.connect

    def counted(self: socket.socket, address: Any) -> None:
        attempts.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", counted)
    with pytest.raises(redis.ConnectionError):
        clients.client({"host": HOST, "port": free_port()}, 1.0).ping()
    assert len(attempts) == 1


class Nodes:
    """Nodes that answer, fail, or hang until the test ends."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = threading.Event()

    def ask(self, node: str) -> str:
        """Do what the node's name says."""
        self.asked.append(node)
        if node.startswith("hung"):
            self.release.wait(60)
        if node.startswith("dead"):
            raise redis.ConnectionError(f"{node} refused")
        return node


@pytest.fixture
def nodes() -> Any:
    """Some nodes."""
    made = Nodes()
    yield made
    made.release.set()


def two_of_them(grace: float) -> AskPolicy:
    """Ask until two have answered, and for so long after the first."""
    return AskPolicy(lambda good: 0.0 if len(good) == 2 else grace)


def test_hung_and_dead_nodes_are_not_waited_for(nodes: Nodes) -> None:
    """The good answer comes while another node still hangs, in either manner."""
    for manner in (AskPolicy(head_start=0.05), two_of_them(0.05)):
        began = time.monotonic()
        assert ask_each(["hung", "dead", "good"], nodes.ask, manner) == ["good"]
        assert time.monotonic() - began < 20


def test_with_a_head_start_a_quick_node_is_the_only_one_asked(nodes: Nodes) -> None:
    """A healthy cluster is not asked by everybody at every node."""
    assert ask_each(["good", "other"], nodes.ask, AskPolicy(head_start=30.0)) == ["good"]
    assert nodes.asked == ["good"]


def test_a_failed_node_hands_its_head_start_on(nodes: Nodes) -> None:
    """After a refusal the next one is asked at once."""
    assert ask_each(["dead", "good"], nodes.ask, AskPolicy(head_start=30.0)) == ["good"]


def test_a_majority_is_heard_when_it_is_quick(nodes: Nodes) -> None:
    """When several answers are wanted, the asking goes on after the first one."""
    assert sorted(ask_each(["one", "two", "hung"], nodes.ask, two_of_them(30.0))) == ["one", "two"]


def test_when_nobody_knows_the_last_trouble_is_told(nodes: Nodes) -> None:
    """All nodes failed: an error with the reason."""
    with pytest.raises(redis.ConnectionError, match=r"dead.* refused"):
        ask_each(["dead-1", "dead-2"], nodes.ask, two_of_them(30.0))


@pytest.mark.parametrize("manner", [AskPolicy(), AskPolicy(head_start=0.05), two_of_them(30.0)])
def test_nodes_that_all_hang_are_given_up(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, manner: AskPolicy) -> None:
    """However they are asked, the asking ends with the reason."""
    monkeypatch.setattr(ask_nodes, "_MOST", 0.1)
    with pytest.raises(redis.ConnectionError, match=r"no answer within 0\.1 s"):
        ask_each(["hung-1", "hung-2"], nodes.ask, manner)
    assert nodes.asked == ["hung-1", "hung-2"]
