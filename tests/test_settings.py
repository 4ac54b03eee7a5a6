"""Settings: where values come from, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolbus.bus.broker import worker
from toolbus.bus.broker.replies.reader import ReplyReader
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings, environment_of


def test_defaults_need_nothing() -> None:
    """Without arguments and variables every setting has its default."""
    assert Settings.load({}) == Settings()


def test_argument_beats_variable_beats_default() -> None:
    """An argument wins over a variable, which wins over the default; None is no argument."""
    environ = {"TOOLBUS_LEASE": "12.5", "TOOLBUS_CONCURRENCY": "7", "TOOLBUS_URL": "redis://elsewhere"}
    settings = Settings.load(environ, lease=5.0, url=None)
    assert (settings.lease, settings.concurrency, settings.url, settings.grace) == (5.0, 7, "redis://elsewhere", 30.0)


def test_a_credential_of_systemd_is_the_file_that_no_variable_names(tmp_path: Path) -> None:
    """A variable wins over it, its source is told, and a setting that is no file is never read from one."""
    for name in ("toolbus.password_file", "toolbus.url"):
        (tmp_path / name).write_text("secret")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    password = (str(tmp_path / "toolbus.password_file"), "credential 'toolbus.password_file'")
    assert Settings.sources(environ)["password_file"] == password
    assert Settings.load(environ).url == Settings().url
    assert Settings.load({**environ, "TOOLBUS_PASSWORD_FILE": "/other"}).password_file == "/other"


def test_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping of its own, load() reads the process's environment."""
    monkeypatch.setenv("TOOLBUS_NAMESPACE", "from-the-environment")
    assert Settings.load().namespace == "from-the-environment"


def test_a_child_process_has_every_setting() -> None:
    """A process that is started by another one has the settings of that, whether an option or a variable gave them."""
    others = {
        name: value + 1 if type(value) in {int, float} else not value if isinstance(value, bool) else value
        for name, value in msgspec.structs.asdict(Settings()).items()
    } | {
        "url": "redis://127.0.0.1:1234", "password_file": "/p", "tls_ca": "/a", "tls_cert": "/c", "tls_key": "/k", "namespace": "other",
        "owner": "me", "connect_timeout": 3.0, "recent": "off", "log_level": "debug", "log_format": "json",
    }  # fmt: skip
    given = Settings(**others)
    assert [name for name in Settings.__struct_fields__ if getattr(given, name) == getattr(Settings(), name)] == []
    assert Settings.load(environment_of(given)) == given


def test_empty_variable_counts_as_unset() -> None:
    """A variable that is set to nothing leaves the default."""
    assert Settings.load({"TOOLBUS_LEASE": ""}).lease == Settings().lease


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_every_setting_reads_its_variable(name: str) -> None:
    """Each field can be given as TOOLBUS_<NAME>, as text."""
    words = {
        "namespace": "other",
        "url": "redis://x",
        "owner": "me",
        "log_level": "debug",
        "log_format": "json",
        "recent": "arguments",
        "require_approval": "True",
        "confine": "False",
        "wait_timeout": "2",
        "reply_bytes": "20000000",
    }
    given = words.get(name, "1000")
    settings = Settings.load({f"TOOLBUS_{name.upper()}": given})
    assert str(getattr(settings, name)).removesuffix(".0") == given
    assert Settings.sources({f"TOOLBUS_{name.upper()}": given})[name][1] == f"TOOLBUS_{name.upper()}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LEASE", "soon"),
        ("LEASE", "0.1"),
        ("LEASE", "nan"),
        ("TIMEOUT", "inf"),
        ("CONCURRENCY", "0"),
        ("CONCURRENCY", "1.5"),
        ("GRACE", "-1"),
        ("MAX_FRAME", "10"),
        ("WAIT_REPLICAS", "-1"),
        ("WAIT_TIMEOUT", "6"),
        ("LOG_LEVEL", "loud"),
        ("NAMESPACE", "a{b}"),
        ("NAMESPACE", "a\n"),
        ("NAMESPACE", "x" * 65),
    ],
)
def test_wrong_variable_is_named(name: str, value: str) -> None:
    """A value out of range or of the wrong type names its variable and shows what was given."""
    with pytest.raises(ConfigurationError, match=f"TOOLBUS_{name} is wrong: .*given: ") as raised:
        Settings.load({f"TOOLBUS_{name}": value})
    assert repr(value) in str(raised.value)


@pytest.mark.parametrize(("name", "value"), [("lease", 0.0), ("timeout", float("inf")), ("queue_limit", -5), ("namespace", "")])
def test_wrong_argument_is_named(name: str, value: Any) -> None:
    """A wrong argument is named as one."""
    with pytest.raises(ConfigurationError, match=f"argument '{name}' is wrong"):
        Settings.load({}, **{name: value})


def test_unknown_argument_is_refused() -> None:
    """A misspelt setting is an error, not silence."""
    with pytest.raises(ConfigurationError, match="no setting 'leese'"):
        Settings.load({}, leese=1.0)


def test_no_password_is_shown_where_settings_are() -> None:
    """A traceback with the locals of its frames names the server, and neither its password nor what the steps of a worker hold."""
    shown = repr(Settings.load({}, url="redis://user:secretpw@example.org:1", namespace="mine"))
    assert "secretpw" not in shown
    assert "example.org" in shown
    assert "mine" in shown
    steps = [each for each in vars(worker).values() if isinstance(each, type) and issubclass(each, WorkerStep)]
    assert len(steps) > 8
    assert {each.__repr__ for each in steps} == {WorkerStep.__repr__}
    assert ReplyReader.__repr__ is not msgspec.Struct.__repr__


def test_sources_say_where_each_value_comes_from() -> None:
    """sources() tells for every setting its value and the argument, variable or default it comes from."""
    sources = Settings.sources({"TOOLBUS_LEASE": "12"}, grace=3.0)
    assert set(sources) == set(Settings.__struct_fields__)
    assert sources["lease"] == (12.0, "TOOLBUS_LEASE")
    assert sources["grace"] == (3.0, "argument 'grace'")
    assert sources["url"] == (Settings().url, "default")


@pytest.mark.parametrize(("values", "names"), [
    ({"max_output": 2_000, "reply_bytes": 1_999, "max_frame": 256}, ("MAX_OUTPUT", "REPLY_BYTES")),
    ({"max_frame": 2_000, "max_output": 300, "reply_bytes": 300}, ("MAX_FRAME", "REPLY_BYTES")),
])  # fmt: skip
def test_a_limit_that_another_one_cuts_off_is_refused(values: dict[str, Any], names: tuple[str, str]) -> None:
    """The error names both, since either may be the wrong one."""
    with pytest.raises(ConfigurationError, match=f"TOOLBUS_{names[0]} .* is more than TOOLBUS_{names[1]} "):
        Settings.load({}, **values)
