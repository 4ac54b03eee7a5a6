"""URLs: what they lead to, what is wrong with them, and that they never show a password."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import toolbus.sync
from toolbus import ConfigurationError, Settings, ToolBus, Worker
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.discovery import BySentinel, Discovery, InCluster, Node
from toolbus.bus.values.results import BrokerUnavailable
from toolbus.bus.values.urls import redact


def test_plain_urls_lead_where_they_say() -> None:
    """Host, port, database and credentials are redis-py's business."""
    found = Connector("redis://user:pw@example.org:7000/3", key="key").discovery
    assert type(found) is Discovery
    assert found.find() is None
    assert {key: found.options[key] for key in ("host", "port", "db", "username", "password")} == {
        "host": "example.org", "port": 7000, "db": 3, "username": "user", "password": "pw",
    }  # fmt: skip


def test_sentinel_urls_name_the_sentinels_the_master_and_the_database() -> None:
    """Several hosts, with and without ports; the credentials are the server's."""
    found = Connector("redis+sentinel://user:pw@one:1,two/mymaster/4?sentinel_password=hush", key="key").discovery
    assert isinstance(found, BySentinel)
    assert found.nodes == [Node("one", 1), Node("two", 26379)]
    assert found.asking_options(found.nodes[0])["password"] == "hush"
    assert {key: found.options[key] for key in ("db", "username", "password")} == {"db": 4, "username": "user", "password": "pw"}
    assert "host" not in found.options


def test_cluster_urls_name_nodes_and_the_namespace_names_the_slot() -> None:
    """Keys of one namespace share a slot, those of another one another's."""
    one, other = (Connector("redis+cluster://a:1,b:2", key=f"tb:{{{name}}}:live").discovery for name in ("one", "other"))
    assert isinstance(one, InCluster)
    assert isinstance(other, InCluster)
    assert one._seeds == [Node("a", 1), Node("b", 2)]
    assert one._slot != other._slot


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host", "scheme"),
        ("redis+sentinel://host", "master name"),
        ("redis+sentinel://host/name/1/2", "master name"),
        ("redis+sentinel://host/name/x", "database number"),
        ("redis+sentinel:///name", "names no host"),
        ("redis+cluster://host:x", "wrong"),
        ("memcached+cluster://host", "scheme"),
        ("redis://host:99999999/0", "its port is no number from 0 to 65535"),
        ("redis://host:x", "its port is no number from 0 to 65535"),
        ("redis://host/x", "'x' is no number of a database"),
        ("rediss://host/1/2", "'1/2' is no number of a database"),
        ("redis://host/-1", "'-1' is no number of a database"),
        ("redis:/host", "scheme"),
        ("memry://", "scheme"),
        ("rediss://host?ssl_ca_cert=ca.pem", "its parameter 'ssl_ca_cert' is unknown"),
        ("redis://host?ssl_ca_certs=ca.pem", "its parameter 'ssl_ca_certs' needs rediss://"),
        ("rediss://host?ssl_cert_reqs=maybe", "maybe"),
        ("rediss+cluster://host?colour=red", "its parameter 'colour' is unknown"),
        ("rediss+sentinel://host/name?sentinel_tls=perhaps", "sentinel_tls is yes or no, not 'perhaps'"),
    ],
)
def test_a_wrong_url_is_named_with_what_is_wrong(url: str, words: str) -> None:
    """The message says which URL, and what to change, before anything is connected."""
    with pytest.raises(ConfigurationError, match=words) as error:
        Connector(url)
    assert url in str(error.value)


@pytest.mark.parametrize(
    ("url", "files", "words"),
    [
        ("redis://host", {"tls_ca": "ca.pem"}, "it does not speak TLS, though TOOLBUS_TLS_CA is set; write rediss:// for redis://"),
        ("redis+cluster://host", {"tls_cert": "c", "tls_key": "k"}, "though TOOLBUS_TLS_CERT and TOOLBUS_TLS_KEY are set"),
        ("unix:///socket", {"tls_ca": "ca.pem"}, "it does not speak TLS"),
        ("rediss://host", {"tls_key": "k"}, "TOOLBUS_TLS_KEY is set and TOOLBUS_TLS_CERT is not"),
    ],
)
def test_certificates_that_would_not_be_used_are_refused(url: str, files: dict[str, str], words: str) -> None:
    """Certificates without their key, or beside a URL without TLS, are refused, because they would not be used."""
    with pytest.raises(ConfigurationError) as error:
        Connector.of(Settings.load({}, url=url, **files))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host", "redis://host"),
        ("redis://:secret@host:1/2", "redis://:***@host:1/2"),
        ("redis://user:se:cr@et@host", "redis://user:***@host"),
        (
            "redis+sentinel://u:secret@one,two/m?sentinel_password=secret&db=1",
            "redis+sentinel://u:***@one,two/m?sentinel_password=***&db=1",
        ),
        ("rediss+cluster://u:secret@one:1,two:2", "rediss+cluster://u:***@one:1,two:2"),
        ("rediss://host?ssl_password=secret&ssl_ca_certs=x", "rediss://host?ssl_password=***&ssl_ca_certs=x"),
        ("redis://host?password=secret", "redis://host?password=***"),
        ("redis://u:secret@host:notaport", "redis://u:***@host:notaport"),
        ("redis:/u:secret@host", "redis:***@host"),
        ("u:secret@host:1", "u:***@host:1"),
        ("redis://secret@host:1/2", "redis://***@host:1/2"),
        ("redis+sentinel://secret@one,two/m", "redis+sentinel://***@one,two/m"),
        ("unix://secret@/socket", "unix://***@/socket"),
        ("secret@host", "***@host"),
        ("redis://:secret", "redis://***"),
        ("redis://:sec#ret", "redis://***"),
        ("redis://:se@c/r#et@host", "redis://:***@host"),
    ],
)
def test_no_url_shows_its_password(url: str, shown: str) -> None:
    """Logs and errors carry the URL without it, also when the URL is wrong."""
    assert redact(url) == shown


@pytest.mark.parametrize(
    "password",
    ["sec/ret", "sec#ret", "sec?ret", "123/ret", "123#ret", "123?ret", "se:c/r@et", "/", "[/", "p@sec#ret", "p@sec/ret", "p@123#x"],
)
def test_a_password_that_must_be_written_in_another_way_is_not_shown(password: str) -> None:
    """A URL that a character ends too early is refused by that character; no part of it is shown, or taken for a port."""
    for scheme in ("redis", "rediss", "redis+sentinel", "redis+cluster", "reddis"):
        with pytest.raises(ConfigurationError) as error:
            Connector(f"{scheme}://u:{password}@host:6379/0", key="key")
        said = str(error.value)
        assert "/ as %2F, # as %23 and ? as %3F" in said
        assert f"'{scheme}://u:***@host:6379/0'" in said
        assert "123" not in said
        assert "sec" not in said


@pytest.mark.parametrize("url", ["redis://:secret", "redis://:secret/0", "redis+cluster://:secret", "redis+cluster://one:secret"])
def test_a_password_whose_host_was_forgotten_is_not_said(url: str) -> None:
    """It is taken for a port, and its text must not be in the reason."""
    with pytest.raises(ConfigurationError) as error:
        Connector(url, key="key")
    assert "secret" not in str(error.value).replace("one:secret", "")


@pytest.mark.parametrize(
    "make",
    [
        ToolBus,
        toolbus.sync.ToolBus,
        lambda url: Worker([print], url=url),
        lambda url: Settings.load({}, url=url),
    ],
    ids=["bus", "sync", "worker", "settings"],
)
def test_an_impossible_url_is_refused_where_it_is_given(make: Callable[[str], object]) -> None:
    """Buses, workers and settings made with it say so at once, without its password."""
    for url in ("memry://", "redis://u:secret@host/x", "redis://:p@sec#ret@host"):
        with pytest.raises(ConfigurationError, match="argument 'url' is wrong") as error:
            make(url)
        assert "sec" not in str(error.value)


def test_paths_of_sockets_may_have_any_character() -> None:
    """They have no user or password that could end early."""
    assert Connector("unix:///run/a@b#c.sock").discovery.options["path"].startswith("/run/a@b")


def test_an_at_sign_in_a_parameter_is_none_of_a_user() -> None:
    """A password in the query may have one."""
    assert Connector("redis://host:1/2?password=p@ss", key="key").discovery.options["password"] == "p@ss"


def test_the_password_file_is_read_afresh_and_wins(tmp_path: Path) -> None:
    """Each connect uses the password that the file holds then, without the line's end, and not the URL's."""
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    connector = Connector("redis://:old@host", password_file=str(secret))
    assert connector._options(None)["password"] == "first"
    secret.write_text("second")
    assert connector._options(None)["password"] == "second"


def test_the_sentinels_password_file_is_read_afresh(tmp_path: Path) -> None:
    """A rotated password is found at the next connect; the server's own connections never use it."""
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    connector = Connector(f"redis+sentinel://one,two/m?sentinel_password_file={secret}")
    found = connector.discovery
    assert isinstance(found, BySentinel)
    node = Node("one", 26379)
    assert found.asking_options(node)["password"] == "first"
    secret.write_text("second")
    assert found.asking_options(node)["password"] == "second"
    assert "password" not in connector._options(node)
    secret.unlink()
    with pytest.raises(redis.AuthenticationError, match="can't be read"):
        found.asking_options(node)


def test_a_sentinel_has_one_password() -> None:
    """Two of them would leave it to chance which one is used."""
    with pytest.raises(ConfigurationError, match="both sentinel_password and sentinel_password_file"):
        Connector("redis+sentinel://one,two/m?sentinel_password=a&sentinel_password_file=b")


def test_a_server_that_somebody_runs_needs_no_advice_for_beginners(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error does not tell to start one where a URL was set or a server has answered, also to an earlier connector of this process."""
    monkeypatch.setattr(Connector, "_default_reached", False)
    default, other = Settings().url, "redis://127.0.0.1:1"

    def advice(connector: Connector) -> str:
        with pytest.raises(BrokerUnavailable) as raised, connector.errors():
            raise redis.ConnectionError("Error 111 connecting to somewhere.")
        return str(raised.value).rpartition("; ")[2]

    assert advice(Connector(default)) == "start a server with `toolbus dev`, or set TOOLBUS_URL"
    connector = Connector(other)
    assert advice(connector) == "start it, or correct its URL"
    connector._answered()
    assert advice(connector) == "it answered before, so it is tried again"
    assert "toolbus dev" in advice(Connector(default))
    Connector(default)._answered()
    assert advice(Connector(default)) == "start it, or correct its URL"
