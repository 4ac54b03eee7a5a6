"""Steps of an operator on a running service."""

import asyncio
import json
import sys


async def put(url, namespace, name, service, **config):
    """Add a tool to a service, from the command line."""
    document = {"type": "tool-service", "name": name, "description": "a tool", "service": service, **config}
    command = [sys.executable, "-m", "toolbus", "--url", url, "--namespace", namespace, "put", f"tool/{name}"]
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate(json.dumps(document).encode())
    assert process.returncode == 0, said
