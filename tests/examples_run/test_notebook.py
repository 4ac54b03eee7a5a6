"""The notebook runs from its first cell to its last, and is stored without outputs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.examples_run.desk import Desk
from tests.examples_run.pages import EXAMPLES

NOTEBOOK = EXAMPLES / "notebook" / "tour.ipynb"


def cells(text: str) -> list[dict[str, Any]]:
    """Return the cells with code."""
    return [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def test_it_is_stored_without_outputs() -> None:
    """Outputs, counts and metadata of a run are in no commit."""
    for cell in cells(NOTEBOOK.read_text("utf-8")):
        assert (cell["outputs"], cell["execution_count"], cell["metadata"]) == ([], None, {})


@pytest.mark.usefixtures("slow")
def test_it_runs_to_its_end(desk: Desk) -> None:
    """A kernel of Jupyter runs every cell: calls, a stream with its progress, and the drawing."""
    desk.run("jupyter execute notebook/tour.ipynb --output=executed")
    found = cells((desk.folder / "notebook" / "executed.ipynb").read_text("utf-8"))
    outputs = [output for cell in found for output in cell["outputs"]]
    shown: dict[str, str] = {}
    for output in outputs:
        for kind, value in output.get("data", {"text/plain": output.get("text", "")}).items():
            shown[kind] = shown.get(kind, "") + "".join(value)
    assert "2/2" in shown["text/plain"]
    assert "R61: 7 free seats. R601: 14 free seats." in shown["text/plain"]
    assert "invalid_arguments" in shown["text/plain"]
    assert "<svg" in shown["image/svg+xml"]
