"""``toolbus new`` hides nothing that the tool needs."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell


@pytest.mark.parametrize("name", ["toolbus", "msgspec", "click", "pytest", "toolbus_workers"])
def test_no_installed_package_is_hidden(shell: Shell, name: str) -> None:
    """A file of that name would be imported in the package's place, by toolbus itself too."""
    done = shell.run("new", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"toolbus: {name} is an installed package, which {name}.py would hide; choose another name\n"
    assert list(shell.folder.iterdir()) == []
