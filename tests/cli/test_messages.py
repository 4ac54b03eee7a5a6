"""Messages of commands about values and results that are not what was expected."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.shell import Shell

TOOLS = '''
from toolbus import Blob, ToolError, tool

@tool(service="drawn", effect="read")
def draw():
    """Draw."""
    yield "here it is"
    yield Blob("image/png", b"abc")
    yield Blob("text/\\x1b[2Jx", b"x" * 2000)

@tool(service="drawn", effect="read")
def busy():
    """Be busy."""
    raise ToolError("come back", code="too_many", retry_after=3)

@tool(service="drawn", effect="read")
def half(of: float) -> float:
    """Halve a number."""
    return of / 2
'''


ADVICE = "--save DIR writes them to files, --output json shows them in base64"


@pytest.fixture
def drawn(shell: Shell) -> Shell:
    """Return a shell beside a worker."""
    (shell.folder / "drawn.py").write_text(TOOLS)
    shell.start("worker", "drawn.py")
    assert shell.run("call", "busy", "--wait", "20").returncode == 1
    return shell


def test_blobs_are_told_beside_the_text(drawn: Shell) -> None:
    """Each has its type and size on standard error, streamed or not; standard output has the text alone."""
    for words in ((), ("--stream",)):
        done = drawn.run("call", "draw", *words)
        assert done.stdout == "here it is\n"
        assert done.stderr == f"[image/png, 3 bytes], [text/\\u001b[2Jx, 2,000 bytes]; {ADVICE}\n"
    assert drawn.run("call", "draw", "--output", "json").stderr == ""


def test_blobs_are_saved(drawn: Shell) -> None:
    """Each goes into a new file, numbered in order after those there; what the worker says of it leads nowhere else, and is told."""
    for number in (1, 3):
        done = drawn.run("call", "draw", "--save", "new/pictures")
        assert (done.returncode, done.stdout) == (0, "here it is\n")
        assert done.stderr.splitlines() == [
            f"new/pictures/draw-{number}.png (image/png, 3 bytes)",
            f"new/pictures/draw-{number + 1}.bin (text/\\u001b[2Jx, 2,000 bytes)",
        ]
    saved = sorted((drawn.folder / "new" / "pictures").iterdir())
    assert len(saved) == 4
    assert {path.suffix for path in saved} == {".png", ".bin"}
    assert sorted(len(path.read_bytes()) for path in saved) == [3, 3, 2000, 2000]


def test_a_folder_that_can_not_be_written_is_named(drawn: Shell) -> None:
    """The command fails in one line, after the output; a result without blobs saves none and says so."""
    (drawn.folder / "taken").write_text("")
    done = drawn.run("call", "draw", "--save", "taken/pictures")
    assert (done.returncode, done.stdout) == (1, "here it is\n")
    assert done.stderr.startswith("toolbus: can't save to taken/pictures: ")
    assert drawn.run("call", "half", "of=3", "--save", "none").stderr == "the result has no images or files to save\n"
    assert not (drawn.folder / "none").exists()


def test_a_failed_call_says_all_that_is_known(drawn: Shell) -> None:
    """The tool's own code and the time to wait stand beside type and message."""
    assert drawn.run("call", "busy").stderr == "toolbus: tool_error (too_many): come back; try again after 3 s\n"


@pytest.mark.parametrize(("text", "half"), [(".5", "0.25"), ("-.5", "-0.25"), ("+5", "2.5"), ("5.", "2.5"), ("5", "2.5")])
def test_numbers_are_read_as_people_write_them(drawn: Shell, text: str, half: str) -> None:
    """JSON knows fewer forms of a number; words stay words, which the tool refuses."""
    assert drawn.run("call", "half", f"of={text}").stdout.strip() == half
    assert "invalid_arguments" in drawn.run("call", "half", f"of={text}x").stderr


def test_absence_names_a_namespace_that_is_not_the_default(shell: Shell) -> None:
    """A forgotten TOOLBUS_NAMESPACE is a common reason for it; the default one needs no name."""
    namespace = shell.environment["TOOLBUS_NAMESPACE"]
    for words in (
        ("tools",),
        ("see", "services"),
        ("see", "describe", "add"),
        ("call", "add"),
        ("see", "usage"),
    ):
        assert f"(namespace {namespace!r})" in shell.run(*words).stderr, words
    del shell.environment["TOOLBUS_NAMESPACE"]
    for words in (
        ("tools",),
        ("see", "services"),
        ("see", "describe", "add"),
        ("call", "add"),
        ("see", "usage"),
    ):
        assert "namespace" not in shell.run(*words).stderr, words


def test_a_wrong_time_is_no_number_of_seconds(shell: Shell) -> None:
    """The message is a sentence, for words as for what is no number."""
    for value in ("x", "nan", "5s"):
        assert f"'{value}' is not a number of seconds" in shell.run("call", "add", "--timeout", value).stderr


@pytest.mark.parametrize("name", ["LOG_LEVEL", "LOG_FORMAT"])
def test_a_wrong_word_of_a_setting_names_the_right_ones(shell: Shell, name: str) -> None:
    """The choices are in the message."""
    shell.environment[f"TOOLBUS_{name}"] = "verbose"
    choices = "debug, info, warning, error" if name == "LOG_LEVEL" else "auto, text, json"
    assert shell.run("tools").stderr == f"toolbus: TOOLBUS_{name} is wrong: choose {choices} (given: 'verbose')\n"


def test_ctrl_c_while_modules_are_loaded_is_quiet(shell: Shell) -> None:
    """It ends the command with exit code 130, without a traceback, like Ctrl-C later."""
    program = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == NAME:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from toolbus.__main__ import run
run()
"""
    for name in ("click", "toolbus.operations.cli", "toolbus.operations.cli.see", "toolbus.operations.cli.common"):
        done = subprocess.run(
            [sys.executable, "-c", program.replace("NAME", repr(name)), "tools"],
            cwd=shell.folder,
            env=shell.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr.strip()) == (130, ""), name


def test_letters_that_are_not_there_are_not_left_as_they_were(shell: Shell) -> None:
    """A letter that does not exist is told as that."""
    done = shell.run("operate", "dead", "redrive", "drawn", "1-0", "--yes")
    assert done.returncode != 0
    assert "left as it was" not in done.stderr
