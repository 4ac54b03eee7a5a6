"""``toolbus secure tokens``."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell


@pytest.mark.parametrize("where", [(), ("--file", "tokens.json")], ids=["server", "file"])
def test_a_token_is_shown_once(shell: Shell, where: tuple[str, ...]) -> None:
    """It is printed when it is made, listed without anything secret, and revoked by its name."""
    options = ("--user", "acme", "--group", "docs", "--permission", "observe", "--rate", "5/minute", "--expires", "90d")
    made = shell.run("secure", "tokens", "add", "ci", *options, *where)
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert token.startswith("tb_")
    listed = shell.run("secure", "tokens", "list", *where).stdout
    assert token[-20:] not in listed
    [found] = shell.json("secure", "tokens", "list", *where)
    assert (found["name"], found["user"], found["groups"], found["permissions"]) == ("ci", "acme", ["docs"], ["observe"])
    assert "hash" not in found
    assert "already" in shell.run("secure", "tokens", "add", "ci", *where).stderr
    assert shell.run("secure", "tokens", "revoke", "ci", *where).returncode == 0
    assert shell.run("secure", "tokens", "revoke", "ci", *where).returncode == 1
    assert shell.json("secure", "tokens", "list", *where) == []


@pytest.mark.parametrize(
    "wrong",
    [
        ("--rate", "lots"),
        ("--rate", "0/minute"),
        ("--expires", "soon"),
        ("--expires", "2001-01-01"),
        ("--expires", "0d"),
        ("--permission", "all"),
        ("--user", "u" * 300),
    ],
    ids=" ".join,
)
def test_wrong_options_make_no_token(shell: Shell, wrong: tuple[str, str]) -> None:
    """A token that could not be read again, or that says what it can't mean, is not made."""
    refused = shell.run("secure", "tokens", "add", "ci", *wrong)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Traceback" not in refused.stderr
    assert shell.json("secure", "tokens", "list") == []


def test_a_file_that_is_none_is_left_alone(shell: Shell) -> None:
    """A file of something else is not written over."""
    (shell.folder / "notes.txt").write_text("notes")
    refused = shell.run("secure", "tokens", "add", "ci", "--file", "notes.txt")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert (shell.folder / "notes.txt").read_text() == "notes"
