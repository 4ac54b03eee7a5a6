"""Mistakes on the command line and in the environment: each is told once, with what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.cli.shell import Shell
from tests.servers import eventually_sync
from toolbus.__main__ import run
from toolbus.bus.values.settings import Settings, misspelt
from toolbus.operations import cli
from toolbus.operations.cli import main

TOOL = """
from toolbus import tool

@tool(service="spoken", effect="read")
def say() -> str:
    "Say it."
    return "{}"
"""


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its words."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


ALL = dict(commands(main))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_takes_the_common_options_after_its_name(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one given counts, whatever the case of a level."""
    monkeypatch.setenv("TOOLBUS_URL", "redis://unused")
    seen: list[dict[str, str]] = []
    command = ALL[words]
    monkeypatch.setattr(command, "callback", lambda **_: seen.append(dict(click.get_current_context().find_root().obj)))
    monkeypatch.setattr(command, "params", [param for param in command.params if not param.required])
    given = ["--url", "redis://after", "--namespace", "mine", "-l", "DEBUG", "--log-format", "TEXT"]
    done = CliRunner().invoke(main, ["--url", "redis://before", *words, *given])
    assert done.exit_code == 0, done.output
    assert seen == [{"url": "redis://after", "namespace": "mine", "log_level": "debug", "log_format": "text"}]


WRONG = {"url": "nonsense", "namespace": "a/b", "lease": "0.01", "grace": "-3"}


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        (words, param.opts[0], WRONG[param.name])
        for words, command in commands(main)
        for param in command.params
        if isinstance(param, click.Option) and param.name in WRONG
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_wrong_setting_is_a_usage_error(words: tuple[str, ...], option: str, value: str) -> None:
    """Every option that is a setting is refused with exit code 2 and words for people, at every command that has it."""
    done = CliRunner().invoke(main, [*words, option, value])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}': " in done.output
    assert "regex" not in done.output


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_no_option_takes_what_is_no_finite_number(number: str) -> None:
    """NaN is below no bound and above none, and infinity is no time that can be waited for: each is a usage error."""
    taken = []
    for words, command in ALL.items():
        context = click.Context(command)
        for param in command.get_params(context):
            try:
                found = param.type.convert(number, param, context)
            except click.UsageError:
                continue
            if isinstance(found, float):
                taken.append((*words, param.name))
    assert taken == []


@pytest.mark.parametrize(
    "name", [each for each in Settings.__struct_fields__ if each in WRONG or isinstance(getattr(Settings(), each), (int, float))]
)
def test_a_wrong_variable_ends_as_a_wrong_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is wrong in the environment is told in one line, with the exit code of wrong usage."""
    variable = f"TOOLBUS_{name.upper()}"
    monkeypatch.setenv(variable, WRONG.get(name, "nonsense"))
    done = CliRunner().invoke(main, ["tools"])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert done.output.startswith(f"toolbus: {variable} is wrong: ")


def test_a_command_uses_the_server_that_is_named_after_it(shell: Shell, server: str) -> None:
    """Also a command of a group."""
    shell.environment["TOOLBUS_URL"] = "redis://127.0.0.1:1"
    assert "can't reach redis://127.0.0.1:1" in shell.run("see", "services").stderr
    for words in (
        ("see", "services"),
        ("operate", "dead", "list"),
    ):
        assert shell.run(*words, "--url", server).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("see", "describe", "say"),
        ("operate", "items", "get", "tool/other"),
        ("operate", "dead", "show", "spoken", "1-0"),
        ("toolkit", "schema"),
    ],
    ids=" ".join,
)
def test_commands_that_print_json_say_so(shell: Shell, words: tuple[str, ...]) -> None:
    """``--output json`` is no mistake where JSON is printed in any case; what fails says why."""
    done = shell.run(*words, "--output", "json")
    assert "No such option" not in done.stderr
    assert done.returncode in {0, 1}


@pytest.mark.parametrize(
    "words",
    [
        ("operate", "purge", "nosuch"),
        ("operate", "purge", "nosuch", "--yes"),
        ("operate", "pause", "nosuch"),
        ("operate", "resume", "nosuch"),
        ("operate", "dead", "list", "nosuch"),
        ("operate", "dead", "redrive", "nosuch", "--all"),
        ("operate", "dead", "drop", "nosuch", "--all", "--yes"),
    ],
    ids=" ".join,
)
def test_a_service_that_nobody_knows_is_told_before_anything_is_asked(shell: Shell, words: tuple[str, ...]) -> None:
    """The command fails with its name, and without a question."""
    done = shell.run(*words)
    assert done.returncode == 1
    assert "no service" in done.stderr
    assert "'nosuch'" in done.stderr
    assert "[y/N]" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_a_misspelt_variable_is_told(name: str) -> None:
    """Left out, doubled and swapped letters, and lower case, are near enough."""
    variable = f"TOOLBUS_{name.upper()}"
    assert misspelt({variable: "x"}) == {}
    assert misspelt({variable.lower(): "x"}) == {variable.lower(): variable}
    doubled = variable + variable[-1]
    assert misspelt({doubled: "x"}) == {doubled: variable}


def test_variables_of_services_are_no_mistakes() -> None:
    """Names that installed services read look like no setting."""
    from toolbus.bus.worker.loading import describe, installed_services

    names = [name for service in installed_services() for name in describe(service).settings]
    assert names
    assert misspelt(dict.fromkeys(names, "x")) == {}


@pytest.mark.usefixtures("slow")
def test_a_misspelt_variable_is_told_once(shell: Shell) -> None:
    """A command says so once, and so does a worker with its child processes."""
    shell.environment["TOOLBUS_NAMESPCE"] = "other"
    expected = "TOOLBUS_NAMESPCE is no setting; did you mean TOOLBUS_NAMESPACE?"
    for words in (
        ("see", "services"),
        ("see", "settings"),
        ("operate", "dead", "list"),
        ("worker", "nosuch.py", "--processes", "2"),
    ):
        assert shell.run(*words).stderr.count(expected) == 1, words


def test_levels_and_formats_have_any_case() -> None:
    """As variables, too."""
    settings = Settings.load({"TOOLBUS_LOG_LEVEL": "DEBUG", "TOOLBUS_LOG_FORMAT": "Json"})
    assert (settings.log_level, settings.log_format) == ("debug", "json")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("target", ["spoken", "spoken.inner", "bare"])
def test_packages_of_the_current_folder_are_reloaded(shell: Shell, target: str) -> None:
    """``worker pkg --reload`` serves what its files say now, whether it is a package, its module, or a folder of modules."""
    folder = shell.folder / target.partition(".")[0]
    folder.mkdir()
    file = folder / ("inner.py" if target != "bare" else "tools.py")
    if target != "bare":
        (folder / "__init__.py").touch()
    file.write_text(TOOL.format("old"))
    # Installed commands, unlike modules that are run, do not have the current folder on their path.
    shell.environment["PYTHONSAFEPATH"] = "1"
    shell.start("worker", target, "--reload", "--grace", "5")
    assert shell.run("call", "say", "--wait", "20").stdout == "old\n"
    file.write_text(TOOL.format("changed"))
    eventually_sync(lambda: shell.run("call", "say", "--wait", "5").stdout == "changed\n", timeout=30)


@pytest.mark.usefixtures("slow")
def test_reload_without_its_extra_is_one_line(shell: Shell) -> None:
    """It names the extra, in one line."""
    (shell.folder / "spoken.py").write_text(TOOL.format("x"))
    program = (
        "import importlib.util as u; find = u.find_spec; u.find_spec = lambda name, *a: None if name == 'watchfiles' else find(name, *a);"
    )
    program += "from toolbus.operations.cli import main; main(['worker', 'spoken.py', '--reload'])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=shell.folder, env=shell.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "toolbus: --reload needs watchfiles: pip install 'toolbus[reload]'"


def test_reload_with_nothing_to_watch_is_told(shell: Shell) -> None:
    """The examples of ``dev`` do not change."""
    assert "name one" in shell.run("dev", "--reload").stderr


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("calculater", "calculator"),
        ("toolbus_workers.calculater", "toolbus_workers.calculator"),
        ("toolbus_workers.x", "`toolbus see workers` lists"),
        ("spokne", "spoken.py"),
        ("nothing_like_it", "`toolbus see workers` lists"),
        ("nothing.like.it", "`toolbus see workers` lists"),
    ],
)
def test_a_misspelt_target_is_told_what_there_is(shell: Shell, target: str, meant: str) -> None:
    """Installed services, files beside, and modules of a package are named where they look like it, and nothing is served."""
    (shell.folder / "spoken.py").write_text(TOOL.format("x"))
    done = shell.run("worker", "calculator", target)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert f"there is no module {target!r}" in line
    assert meant in line


HOSTILE_FILES = {
    "def __getattr__(name): raise SystemExit(5)": "defines no ToolService",
    "class Closed:\n    def __getattribute__(self, name): raise KeyboardInterrupt\nx = Closed()": "defines no ToolService",
    "class Typed:\n    @property\n    def __class__(self): raise SystemExit(6)\nx = Typed()": "defines no ToolService",
    "class Mute(Exception):\n    def __str__(self): raise RuntimeError\nraise Mute": "can't be imported: Mute - at",
    "class Meta(type):\n    def __getattribute__(self, name): raise SystemExit(7)\nx = Meta('X', (), {})": "defines no ToolService",
    "class Meta(type):\n    def __getattribute__(self, name): raise SystemExit(7)\n"
    "class X(Exception, metaclass=Meta): pass\nraise X": "can't be imported: X - at",
}


@pytest.mark.parametrize("text", HOSTILE_FILES)
def test_a_tool_file_whose_objects_raise_is_told_in_one_line(shell: Shell, text: str) -> None:
    """Its objects are looked at without asking them, and what it raises is told whatever its class does."""
    (shell.folder / "odd.py").write_text(text)
    done = shell.run("worker", "odd.py")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert HOSTILE_FILES[text] in done.stderr


def test_a_file_without_an_end_is_not_read_to_its_end(shell: Shell) -> None:
    """Neither from a path nor from standard input; nothing is stored."""
    (shell.folder / "big.json").write_text(json.dumps({"name": "x", "description": "d" * 5_000_000, "service": "s"}))
    for place in ("/dev/zero", "big.json"):
        done = shell.run("operate", "items", "put", "tool/x", place)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "over the limit of 4,194,304 bytes" in done.stderr
    assert shell.json("operate", "items", "list") == []


LOADING = """
import sys, time
from importlib.abc import MetaPathFinder
from toolbus.operations.cli import calls, main

class Loading(MetaPathFinder):
    def find_spec(self, name, *_):
        found.append(time.monotonic())

found = []
sys.meta_path.insert(0, Loading())
left = calls._left

def watched(timeout, began):
    print(len(found), sum(each > began for each in found))
    return left(timeout, began)

calls._left = watched
main(["call", "nothing"])
"""


def test_the_time_of_a_call_begins_when_all_is_loaded(shell: Shell) -> None:
    """Modules that are loaded for the first time, which may take seconds, take nothing of ``--timeout``; connecting does."""
    done = subprocess.run([sys.executable, "-c", LOADING], env=shell.environment, capture_output=True, text=True, timeout=60, check=False)
    loaded, late = map(int, done.stdout.split())
    assert loaded > 100
    assert late < 10, "connecting itself may load a codec"
    assert "not_found" in done.stderr


class Interrupted:
    """Is interrupted in one of the ways in which Python hides it."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __call__(self, **_: object) -> None:
        """Be interrupted while a class is made, while an import fails, or in a callback whose errors are dropped."""
        if self.way == "class":
            type("Made", (), {"field": self})
        elif self.way == "import":
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                raise ImportError("half of it") from None
        else:
            self.__class__(self.way).__class__ = Dropped
            while True:
                pass

    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


class Dropped(Interrupted):
    """Is interrupted when it goes."""

    def __del__(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("way", ["class", "import", "callback"])
def test_ctrl_c_counts_where_python_hides_it(way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends a command with 130 and without a word also while a class is made, in an import that fails, and in a callback."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(cli, "main", Interrupted(way))
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130
    assert capfd.readouterr() == ("", "")
