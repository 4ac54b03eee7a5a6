"""The options of ``@tool``, ``Retry`` and ``ToolService``: each is checked where it is written, in one line."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolbus import ConfigurationError, Retry, Settings, ToolService, Worker, tool
from toolbus.bus.worker import function
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.function import tool_of

# Wrong values of each option.
TOOL: dict[str, list[Any]] = {
    "name": [3, ["a"], b"a"],
    "description": [3, ["a"]],
    "parameters": ["{}", [1]],
    "category": [3, None],
    "groups": [3, [1], {"a": 1}, None],
    "service": [3, ["a"]],
    "effect": [3, "reads", None],
    "timeout": ["5", -1, math.nan, math.inf, True, None],
    "output_limit": ["5", -1, 1.5, None],
    "confirm": ["no", 1, None],
    "tenants": [3, [1], None],
    "retry": [3, True, {"attempts": 2}],
    "cache": ["no", 1],
    "sequential": ["no", 1],
    "isolation": [True, ["process"], "thread", None],
    "memory_limit": ["5", -1, 1.5, None],
    "task": ["sometimes", True, -1, math.nan, ["auto"]],
    "output_schema": ["{}", [1], 3],
    "state": ["self", 1, None],
    "replace": ["no", None],
}
SERVICE: dict[str, list[Any]] = {
    "id": [3, ["a"]],
    "config_params": ["style", [3], None],
    "tools": ["tool", [3], {"name": "a"}],
    "effect": [3, "reads"],
    "description": [3],
    "request_queue": [3, None],
    "response_queue": [3, None],
    "scale_to_zero": ["no", 1],
    "queue_limit": ["5", -1, 1.5],
    "retry": [3, True],
    "sequential": ["no", 1],
    "sticky_sessions": ["no"],
    "session_lost": ["forget", 3, None],
    "session_idle": ["5", 0, math.nan, math.inf, None],
    "max_sessions": ["5", 0, 1.5, None],
}
RETRY: dict[str, list[Any]] = {
    "attempts": ["3", 0, 1.5, None],
    "delay": ["1", -1, math.nan, None],
    "most": ["1", -1, math.nan],
    "jitter": ["1", -0.1, 1.1, math.nan],
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test decorates stays in the process."""
    monkeypatch.setattr(function, "_by_function", dict(function._by_function))
    monkeypatch.setattr(function, "_by_service", dict(function._by_service))


def cases(options: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    """Every wrong value with its option."""
    return [(name, value) for name, values in options.items() for value in values]


def test_every_option_is_listed_here() -> None:
    """A new option needs wrong values here, so that its check is not forgotten."""
    assert TOOL.keys() | {"unknown"} == inspect.signature(tool).parameters.keys()
    # The worker sets the last one.
    assert SERVICE.keys() | {"worker_settings"} == ToolService.__annotations__.keys()
    assert set(RETRY) == set(Retry.__struct_fields__)


@pytest.mark.parametrize(("name", "value"), cases(TOOL))
def test_a_tools_option_is_refused_with_the_tool(name: str, value: Any) -> None:
    """The message names the tool and its module, the option, and the value, in one line."""

    def wronged() -> None:
        """Do nothing."""

    with pytest.raises(ConfigurationError) as refused:
        tool(**{name: value})(wronged)
    said = str(refused.value)
    assert all(word in said for word in ("wronged", __name__, name, repr(value)))
    assert "\n" not in said


@pytest.mark.parametrize(("name", "value"), cases(SERVICE))
def test_a_services_attribute_is_refused_with_its_class(name: str, value: Any) -> None:
    """The message names the class and its place, the attribute, and the value, in one line; nothing was served."""

    class Wronged(ToolService):
        """Has a wrong attribute."""

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> None:
            """Do nothing."""

    setattr(Wronged, name, value)
    with pytest.raises(ConfigurationError) as refused:
        Worker(Wronged, url="memory://")
    said = str(refused.value)
    assert all(word in said for word in ("Wronged", f"{__file__}:", name, repr(value)))
    assert "\n" not in said


@pytest.mark.parametrize(("name", "value"), cases(RETRY))
def test_a_retrys_value_is_refused(name: str, value: Any) -> None:
    """The message names the field and the value."""
    with pytest.raises(ConfigurationError, match=f"Retry: {name} must be ") as refused:
        Retry(**{name: value})
    assert repr(value) in str(refused.value)


def test_one_group_or_tenant_may_be_given_as_a_text() -> None:
    """A text is one group, or one tenant, and not its letters."""

    @tool(groups="shop", tenants="alice", service="wronged")
    def one() -> None:
        """Do nothing."""

    @tool(groups={"shop": 1}.keys(), tenants=("alice", "bob"), service="wronged")
    def many() -> None:
        """Do nothing."""

    (served,) = collect([one, many], Settings())
    many_published, one_published = served.publication.tools
    assert (one_published.groups, one_published.tenants) == (("shop",), ("alice",))
    assert (many_published.groups, many_published.tenants) == (("shop",), ("alice", "bob"))


@pytest.mark.usefixtures("slow")
def test_a_command_tells_the_file_and_line(tmp_path: Path) -> None:
    """`toolbus worker` says a wrong option in one line, with where it is written."""
    file = tmp_path / "wronged_tools.py"
    file.write_text('from toolbus import tool\n\n@tool(timeout="5")\ndef slow() -> None:\n    """Be slow."""\n')
    command = [sys.executable, "-m", "toolbus", "worker", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 1
    assert "timeout must be a number of seconds, 0 or more, not '5' (str)" in said.stderr
    assert "wronged_tools.py:3" in said.stderr
    assert "Traceback" not in said.stderr
    assert len(said.stderr.strip().splitlines()) == 1


@pytest.mark.usefixtures("slow")
def test_a_program_from_standard_input_has_tools() -> None:
    """The tools of a program that is read from standard input form the service ``main``, as those of ``python -c`` do."""
    program = 'from toolbus import Worker, tool\n@tool\ndef f() -> None: ...\nprint(*Worker(f, url="memory://")._served)'
    for how in (["-"], ["-c", program]):
        said = subprocess.run([sys.executable, *how], input=program, capture_output=True, text=True, timeout=60, check=True)
        assert said.stdout.strip() == "main"


def test_a_file_whose_name_is_no_service_is_told_with_what_to_do() -> None:
    """The functions of such a file need a service, or the file another name."""

    def plain() -> None:
        """Do nothing."""

    plain.__module__ = "my tools"
    with pytest.raises(ConfigurationError, match=r"say @tool\(service=…\), or rename the file"):
        collect(tool(plain), Settings())


def test_retries_are_plain_data() -> None:
    """A checked value keeps its fields."""
    assert msgspec.structs.asdict(Retry(attempts=2, delay=0)) == {"attempts": 2, "delay": 0, "most": 30.0, "jitter": 0.5}
    assert tool_of(test_retries_are_plain_data) is None


@pytest.mark.parametrize(("option", "hint"), [("group", "did you mean 'groups'?"), ("xyz", "there are: ")])
def test_an_unknown_option_of_a_tool_is_refused_with_a_similar_one(option: str, hint: str) -> None:
    """The message names what was given, and what was probably meant."""
    unknown: Any = {option: "money"}
    with pytest.raises(ConfigurationError, match=f"no option '{option}'") as raised:
        tool(**unknown)
    assert hint in str(raised.value)
