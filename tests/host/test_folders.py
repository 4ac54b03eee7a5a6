"""Folders of sources: where a host looks for relative ones."""

from __future__ import annotations

from pathlib import Path

from toolbus.platform.host.host import found_in
from toolbus.platform.records import ToolSource


def test_relative_folders_are_looked_for_where_the_host_is_told(tmp_path: Path) -> None:
    """The first folder that has it wins; absolute ones, and those that are nowhere, stay as they are recorded."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two" / "tool").mkdir(parents=True)
    folders = (tmp_path / "one", tmp_path / "two")
    for given, found in (
        ("tool", str(tmp_path / "two" / "tool")),
        ("absent", "absent"),
        (str(tmp_path / "one"), str(tmp_path / "one")),
        ("~/tool", "~/tool"),
        ("", ""),
    ):
        assert found_in(ToolSource(type="local", host_dir=given), folders).host_dir == found
