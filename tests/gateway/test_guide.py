"""The guide to HTTP: its commands do what it says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.served import TOOLS, Site
from tests.servers import eventually_sync

GUIDE = (Path(__file__).parents[2] / "docs/how-to/gateway.md").read_text("utf-8")
COMMANDS = re.findall(r"^```bash\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
ANSWERS = [json.loads(each) for each in re.findall(r"^```json\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)]


def meets(found: Any, shown: Any) -> bool:
    """Return whether an answer has all that the guide shows of it."""
    if isinstance(shown, dict):
        return isinstance(found, dict) and all(key in found and meets(found[key], value) for key, value in shown.items())
    if isinstance(shown, list):
        return len(found) >= len(shown) and all(map(meets, found, shown))
    return bool(found == shown)


@pytest.fixture
def address(own_site: Site) -> str:
    """The address of a gateway, with the example workers and a chat service."""
    own_site.worker("--examples", str(TOOLS))
    address = own_site.gateway()[1].removeprefix("http://")
    eventually_sync(lambda: '"tell-pun"' in curl(address, "curl -s localhost:8001/tools"))
    return address


def curl(address: str, command: str) -> str:
    """Run a command of the guide."""
    words = command.replace("localhost:8001", address)
    return subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_commands_of_the_guide_do_what_it_says(address: str) -> None:
    """Each answer has what is shown of it."""
    call, invoke, stream, find, group, chat = (curl(address, command) for command in COMMANDS)
    for found in (call, invoke):
        assert meets(json.loads(found), ANSWERS[0]), found
    assert meets(json.loads(find), ANSWERS[1]), find
    shown = re.search(r"^```\n(retry: .*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    for line in shown[1].splitlines():
        if "…" not in line:
            assert line in stream.splitlines()
    assert [line for line in stream.splitlines() if line.startswith("event")][-1] == "event: end"
    assert json.loads(group)["tool_ids"] == ["calculator"]
    assert json.loads(chat) == {"response": "room-1 said hello", "chat_id": "room-1"}


def test_every_option_can_be_set_in_the_environment() -> None:
    """By its own name, as the guide says."""
    from toolbus.operations.cli.serve import serve_command

    shown = [each for each in serve_command.params if not each.hidden and each.name != "grace"]
    assert len(shown) > 5
    for each in shown:
        assert each.envvar == "TOOLBUS_GATEWAY_" + each.opts[0].removeprefix("--").upper().replace("-", "_")
