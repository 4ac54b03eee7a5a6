"""The version of a namespace: its mark, who may come in, what is converted on the way to the next, and what keeps it back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
import redis

from tests.broker.test_access import Users
from tests.contract import Place
from toolbus import Settings, tool
from toolbus.bus.broker import worker as serving
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.registry import versions
from toolbus.bus.broker.registry import versions as namespaces
from toolbus.bus.broker.registry import versions as spoken
from toolbus.bus.broker.registry.publications import read_record
from toolbus.bus.broker.registry.versions import MIGRATIONS, Migration, NamespaceVersion
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor
from toolbus.bus.values.results import BrokerError, DescriptorError

pytestmark = pytest.mark.anyio


@tool(service="versioned", effect="read")
async def versioned_echo(text: str) -> str:
    """Give a text back."""
    return text


class Stored:
    """A namespace's stored documents and its mark."""

    def __init__(self, settings: Settings) -> None:
        self.keys = Keys(settings.namespace)
        self.client = redis.Redis.from_url(settings.url)

    def mark(self) -> dict[bytes, bytes]:
        return self.client.hgetall(self.keys.format)

    def put(self, **groups: object) -> None:
        self.client.hset(self.keys.groups, mapping={f"group/{name}": json.dumps(document) for name, document in groups.items()})

    def documents(self) -> dict[str, object]:
        return {key.decode(): json.loads(value) for key, value in self.client.hgetall(self.keys.groups).items()}


@pytest.fixture
def users(server: str, namespace: str) -> Iterator[Users]:
    """Make users with roles for a test's namespace."""
    made = Users(server, namespace)
    yield made
    made.remove()


@pytest.fixture
def stored(place: Place) -> Iterator[Stored]:
    """The documents of a test's namespace."""
    made = Stored(place.settings)
    yield made
    made.client.close()


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Speak versions 1 and 2 here, with a migration of groups; the list has the keys that were converted, in order."""
    seen: list[str] = []

    def convert(key: str, document: bytes) -> bytes | None:
        fields = json.loads(document)
        if fields.get("form") == 2:
            return None
        if "bad" in fields:
            raise ValueError("it is of no form")
        seen.append(key)
        return json.dumps({**fields, "form": 2}).encode()

    for module in (namespaces, versions, spoken):
        monkeypatch.setattr(module, "VERSION", 2)
    for module in (namespaces, spoken):
        monkeypatch.setattr(module, "OURS", (1, 2))
    monkeypatch.setattr(versions, "MIGRATIONS", [Migration(2, "group-form", "groups say of which form they are", "group/", convert)])
    return seen


def _quiet(_done: int) -> None:
    pass


def test_no_release_has_changed_a_stored_form() -> None:
    """The first version has no migrations; whoever adds one says so in the documentation."""
    assert MIGRATIONS == []


async def test_a_namespace_without_a_mark_is_of_the_first_version(place: Place, stored: Stored) -> None:
    """Nothing is written for it, and a migration has nothing to do, however often it is run."""
    async with Admin(place.settings) as admin:
        for _ in range(2):
            assert await admin.versions.migrate(10, _quiet) == NamespaceVersion(place.settings.namespace, 1, 0)
    assert stored.mark() == {}


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"0", b"1e3", b"9" * 400])
async def test_a_damaged_mark_counts_as_none(place: Place, stored: Stored, value: bytes) -> None:
    """A stranger's value keeps nobody out."""
    stored.client.hset(stored.keys.format, mapping={"version": value, "raising": value})
    async with place.serving(versioned_echo, role="operator") as bus:
        assert (await bus.call("versioned_echo", {"text": "a"})).output == "a"


@pytest.mark.parametrize(
    ("mark", "state"),
    [({"version": "2"}, "is of version 2"), ({"version": "1", "raising": "2"}, "is being raised to version 2")],
)
async def test_a_newer_namespace_takes_no_process_of_this_release(place: Place, stored: Stored, mark: dict[str, str], state: str) -> None:
    """Workers, agents and migrations name both versions and what to do; nothing stays in the registry."""
    stored.client.hset(stored.keys.format, mapping=mark)
    expected = f"{state} of the protocol, and this process speaks version 1: upgrade it"
    with pytest.raises(BrokerError, match=expected):
        async with place.worker(versioned_echo):
            pass
    with pytest.raises(BrokerError, match=expected):
        async with place.bus():
            pass
    async with Admin(place.settings) as admin:
        with pytest.raises(BrokerError, match=expected):
            await admin.versions.migrate(10, _quiet)
        assert await admin.versions.workers() == []


async def test_a_worker_that_registers_while_the_version_is_raised_leaves(
    place: Place, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark may come between its first look and its registration: it looks again before it takes anything."""
    looks: list[str] = []

    worker = place.worker(versioned_echo)
    real = serving.read_version

    async def read(link: Link, keys: Keys) -> NamespaceVersion:
        found = await real(link, keys)
        looks.append(str(found.written))
        stored.client.hset(stored.keys.format, "version", 2)
        return found

    monkeypatch.setattr(serving, "read_version", read)
    with pytest.raises(BrokerError, match="upgrade it"):
        async with worker:
            pass
    assert looks == ["1", "2"]
    assert stored.client.hkeys(stored.keys.instances("versioned")) == []


async def test_documents_are_converted_in_batches_and_once(place: Place, stored: Stored, second: list[str]) -> None:
    """A second run finds nothing; what is of the new form already is left as it is, and agents hear of every change."""
    stored.put(**{f"g{number}": {"group_id": f"g{number}"} for number in range(25)}, new={"form": 2})
    told: list[int] = []
    async with Admin(place.settings) as admin:
        assert len([each async for each in admin.versions.changes()]) == 25
        after = await admin.versions.migrate(10, told.append)
        assert (after.written, told) == (2, [10, 20, 25])
        assert await admin.versions.migrate(10, _quiet) == after
    assert len(set(second)) == 25
    assert all(document["form"] == 2 for document in stored.documents().values())
    assert stored.mark() == {b"version": b"2"}
    assert stored.client.xlen(stored.keys.log) == 25


async def test_a_migration_that_was_stopped_goes_on(place: Place, stored: Stored, second: list[str]) -> None:
    """The mark says that it is under way, and the next run converts the rest."""
    stored.put(**{f"g{number}": {} for number in range(10)})

    def stop(_done: int) -> None:
        raise KeyboardInterrupt

    async with Admin(place.settings) as admin:
        with pytest.raises(KeyboardInterrupt):
            await admin.versions.migrate(4, stop)
        assert await admin.versions.read() == NamespaceVersion(place.settings.namespace, 1, 2)
        assert len([each async for each in admin.versions.changes()]) == 6
        assert (await admin.versions.migrate(4, _quiet)).written == 2


async def test_a_worker_of_the_version_before_keeps_the_namespace_back(place: Place, stored: Stored, second: list[str]) -> None:
    """It is named, nothing is marked or converted, and it goes on."""
    stored.put(g={})
    async with place.serving(versioned_echo) as bus, Admin(place.settings) as admin:
        [worker] = await admin.versions.workers()
        assert (worker.service, worker.versions) == ("versioned", None)
        with pytest.raises(BrokerError, match=rf"versioned/{worker.instance} \(version 1\) can't read version 2; upgrade these workers"):
            await admin.versions.migrate(10, _quiet)
        assert (await bus.call("versioned_echo", {"text": "a"})).output == "a"
    assert (stored.mark(), stored.documents()) == ({}, {"group/g": {}})


async def test_a_document_of_no_known_form_is_named(place: Place, stored: Stored, second: list[str]) -> None:
    """The others are converted, and the namespace is raised when it is gone."""
    stored.put(a={}, b={"bad": 1}, c={})
    async with Admin(place.settings) as admin:
        with pytest.raises(BrokerError, match="group/b can't be converted: it is of no form; put it anew or `toolbus operate items rm` it"):
            await admin.versions.migrate(10, _quiet)
        assert sorted(second) == ["group/a", "group/c"]
        assert await admin.versions.read() == NamespaceVersion(place.settings.namespace, 1, 2)
        await admin.delete("group/b")
        assert (await admin.versions.migrate(10, _quiet)).written == 2


async def test_a_document_that_somebody_changes_meanwhile_is_converted_as_it_is_then(
    place: Place, stored: Stored, second: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that a person makes in the middle of a migration is neither lost nor left in the older form."""
    stored.put(g={"name": "old"}, h={})
    [migration] = versions.MIGRATIONS
    changed: list[None] = []

    def convert(key: str, document: bytes) -> bytes | None:
        if key == "group/g" and not changed:
            changed.append(None)
            stored.put(g={"name": "new"})
        return migration.convert(key, document)

    monkeypatch.setattr(versions, "MIGRATIONS", [migration._replace(convert=convert)])
    async with Admin(place.settings) as admin:
        assert (await admin.versions.migrate(10, _quiet)).written == 2
    assert stored.documents() == {"group/g": {"name": "new", "form": 2}, "group/h": {"form": 2}}


async def test_only_operators_migrate(users: Users, namespace: str, second: list[str]) -> None:
    """Every role may read the mark, and none but the operator's may write it."""
    for role in ("agent", "worker", "gateway", "monitor", "platform"):
        async with Admin(users.settings(role)) as admin:
            assert (await admin.versions.read()).written == 1
            with pytest.raises(BrokerError, match=r"NOPERM|permission"):
                await admin.versions.migrate(10, _quiet)
    async with Admin(users.settings("operator")) as admin:
        assert (await admin.versions.migrate(10, _quiet)).written == 2


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ((2, 3), "its workers speak versions 2 to 3 of the protocol, and this process version 1: upgrade this process"),
        ((0, 0), "0 to 0 are no versions of the protocol"),
        ((2, 1), "2 to 1 are no versions of the protocol"),
    ],
)
def test_a_service_with_no_version_in_common_can_not_be_used(said: tuple[int, int], problem: str) -> None:
    """An agent says why, and which side is to be upgraded."""
    document = msgspec.json.encode(Publication(ServiceDescriptor("s"), versions=said))
    with pytest.raises(DescriptorError, match=problem):
        read_record(b"+" + document)


def test_a_publication_of_the_first_version_is_written_as_before() -> None:
    """Processes that know of no versions see no difference, and digests stay."""
    assert b"versions" not in msgspec.json.encode(Publication(ServiceDescriptor("s")).with_digest())
    assert read_record(b"+" + msgspec.json.encode(Publication(ServiceDescriptor("s"), versions=(1, 2)))).publication.versions == (1, 2)
