"""The guard: which addresses the network tools may connect to."""

import socket

import pytest

from toolbus import ToolError
from toolbus.bus.outbound import MAX_ADDRESSES, Guard

pytestmark = pytest.mark.anyio


def resolving(*addresses):
    async def resolve(host, port):
        return addresses

    return resolve


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "223.255.255.254", "2606:4700::1111", "2a00:1450:4001::1", "64:ff9b::101:101", "::ffff:1.1.1.1"]
)
def test_public_addresses_are_permitted(address):
    """The public Internet is reachable, also through NAT64."""
    assert Guard().permits(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
        "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1",
        "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "168.63.129.16", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0a00:0001",
        "::ffff:0:10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1",
        "2002:7f00:1::", "2002:a9fe:a9fe::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0",
        "fec0::1", "ff02::1",
        "", "localhost", "1.2.3", "0x7f000001", "2130706433", "1.1.1.1/24",
    ],
)  # fmt: skip
def test_no_other_address_is(address):
    """Private, loopback, link-local, multicast, reserved, unspecified and embedded addresses are refused, and what is no address."""
    assert not Guard().permits(address)


def test_networks_can_be_allowed_by_whoever_builds_the_guard():
    """An intranet is opened by a constructor argument, and nothing else with it."""
    guard = Guard(allow=["10.20.0.0/16", "::1/128"])
    assert guard.permits("10.20.3.4")
    assert guard.permits("::ffff:10.20.3.4")
    assert guard.permits("::1")
    assert not guard.permits("10.21.0.1")
    assert not guard.permits("127.0.0.1")


async def test_all_addresses_of_a_name_are_returned_once():
    """Duplicates, as resolvers give them, do not count."""
    guard = Guard(resolve=resolving("1.1.1.1", "1.1.1.1", "2606:4700::1111"))
    assert await guard.addresses("example.com", 80) == ["1.1.1.1", "2606:4700::1111"]


@pytest.mark.parametrize("private", ["10.0.0.1", "::1", "::ffff:127.0.0.1", "fe80::1%lo"])
async def test_one_private_address_among_public_ones_refuses_the_name(private):
    """A mixed answer is refused as a whole, and the message does not tell what the name resolved to."""
    with pytest.raises(ToolError) as failure:
        await Guard(resolve=resolving("1.1.1.1", private)).addresses("mixed.test", 80)
    assert (failure.value.error.type, failure.value.error.code) == ("forbidden", "forbidden_address")
    assert private not in failure.value.error.message


async def test_a_name_with_too_many_addresses_is_refused():
    """The number of addresses is bounded."""
    with pytest.raises(ToolError, match="not a host on the public Internet"):
        await Guard(resolve=resolving(*(f"1.1.1.{n}" for n in range(MAX_ADDRESSES + 1)))).addresses("many.test", 80)


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost"])
async def test_other_ways_to_write_loopback_are_seen_through(host):
    """The system's resolver reads numbers in every form; what it makes of them is checked."""
    with pytest.raises(ToolError) as failure:
        await Guard().addresses(host, 80)
    assert failure.value.error.code in {"forbidden_address", "unknown_host"}


@pytest.mark.parametrize(
    ("errno", "kind", "code"),
    [
        (socket.EAI_NONAME, "not_found", "unknown_host"),
        (socket.EAI_AGAIN, "unavailable", "no_network"),
        (None, "not_found", "unknown_host"),
    ],
)
async def test_a_name_that_is_not_found_says_what_to_do(errno, kind, code):
    """An unknown name and a missing network are told apart as far as the resolver does."""

    async def resolve(host, port):
        raise OSError("odd") if errno is None else socket.gaierror(errno, "no")

    with pytest.raises(ToolError, match=r"try another page|do without") as failure:
        await Guard(resolve=resolve).addresses("nowhere.test", 80)
    assert (failure.value.error.type, failure.value.error.code) == (kind, code)
    assert failure.value.error.retryable == (kind == "unavailable")
