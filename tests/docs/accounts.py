"""Tables of the documentation's commands that are not simply run: a test fails for any command that is nowhere."""

from __future__ import annotations

# Blocks that have no commands: pictures, output, messages. By page and first line.
SHOWN = {
    ("README.md", "publish                  take                      run"),
    ("docs/how-to/chat2graph.md", "['get_schema'] ['plan', 'query']"),
    ("docs/how-to/confirmations.md", "Allow delete_rows for alice?"),
    ("docs/how-to/gateway.md", "retry: 1000"),
    ("docs/how-to/models.md", "['find_items', 'order']"),
    (
        "docs/how-to/platform-records.md",
        "toolbus: recorded/api: it has a user or password, which everybody could read here: use headers - at `$.sources[0].url`",
    ),
    ("docs/how-to/sessions.md", "2 notes"),
    ("docs/how-to/toolkit.md", "['get_schema', 'run_query', 'count_vertices']"),
    ("docs/how-to/toolkit.md", "analysis.yaml:16: actions[1].next[0].score: Expected `float` <= 1.0"),
    ("docs/protocol.md", 'agent   EVALSHA <publish> 2 tb:{default}:pub:a1 tb:{default}:q:jokes 0 600000 "" 2 10000 60000'),
}

# Pages of which another test runs blocks as they stand: the test, the kind of the blocks, and how many of them, from the first.
RUN_BY = {
    "docs/how-to/gateway.md": ("tests/gateway/test_guide.py", "bash", 6),
    "docs/how-to/learning.md": ("tests/test_docs.py", "", 6),
    "docs/how-to/platform.md": ("tests/assistant/test_guide.py", "bash", 4),
    "docs/how-to/runbooks.md": ("tests/recovery/test_backup.py", "bash", 2),
    "docs/how-to/trustgraph.md": ("tests/test_docs.py", "", 2),
}

# Commands of toolbus that run until they are stopped, or ask a model: their words are checked by the parser. Other tests run each of them.
LASTING = {
    "agent": "asks a model",
    "platform chat": "asks a model",
    "confirm watch": "runs until it is stopped",
    "dev": "runs until it is stopped",
    "platform host": "runs until it is stopped",
    "mount": "starts a server from the network",
    "operate history": "runs until it is stopped",
    "platform logs": "goes on with the option -f; tests/host reads the output of programs",
    "platform sync": "asks a catalogue in the network",
    "platform up": "runs until it is stopped",
    "serve": "runs until it is stopped",
    "operate exporter": "runs until it is stopped",
    "worker": "runs until it is stopped",
}

# Programs that are not ours, and why they are not run.
FOREIGN = {
    "cp": "writes to /etc",
    "docker": "needs a daemon; tests/deploy builds the image and checks the compose file",
    "helm": "needs a cluster; tests/deploy renders the chart",
    "install": "writes to /etc",
    "kubectl": "needs a cluster; tests/deploy checks the manifests",
    "mkdir": "writes to /etc",
    "printf": "writes to /etc",
    "python3": "makes an environment in /opt",
    "redis-cli": "comes with a server; tests/broker takes the printed rights to real servers",
    "schemathesis": "is not installed; tests/gateway checks the document",
    "systemctl": "needs systemd; tests/deploy checks the units",
}

# Single commands that cannot be run as they stand, and why.
UNRUN = {
    'curl https://tools.example/v1/tools -H "Authorization: Bearer $TOKEN"': "the host is an example; tests/gateway sends tokens",
    "echo TOOLBUS_URL=redis://localhost:6379 > /etc/toolbus/toolbus.env": "writes to /etc",
    "JOBS_TOKEN=secret python examples/platform/jobs_api.py": "runs until it is stopped; tests/assistant/test_guide.py runs it",
    "TOOLBUS_URL=redis://localhost:6379 python quip.py --topic quip": "runs until it is stopped; tests/test_docs.py runs it",
}

# Commands that are right, but name something that only a reader has: a pattern of the commands, and the message that refuses them.
REFUSED = {
    r"toolbus confirm (show|allow|deny) 5f3a\b": "no confirmation '5f3a' is open",
    r"toolbus operate conversations show orders --user alice": "there is no conversation 'orders' of the user 'alice'",
    r"toolbus operate conversations rm orders --user alice": "Delete the conversation 'orders'",
    r"toolbus operate dead (show|redrive) prices 1790000000000-0": "there is no dead letter 1790000000000-0 of 'prices'",
    r"toolbus operate dead (redrive|drop) prices --all\b": "there are no dead letters of 'prices'",
    r"toolbus see calls --since 1d --history calls\.db": "calls.db is no history that can be used",
    r"toolbus secure approve search --digest \w+": "the tool 'search' has the digest",
    r"toolbus secure approve image_stitcher\b": "nobody offers a tool 'image_stitcher'",
}

# How many Python examples each page has, and the test that runs them: a new example fails until its test and this number know it.
PYTHON = {
    "CONTRIBUTING.md": (1, "tests/simulation/test_simulation.py"),
    "README.md": (2, "tests/test_docs.py"),
    "docs/explanation/reliability.md": (2, "tests/docs/test_python.py"),
    "docs/how-to/adapters.md": (6, "tests/adapters/test_adapters.py"),
    "docs/how-to/agent.md": (1, "tests/test_docs.py"),
    "docs/how-to/chat2graph.md": (2, "tests/test_docs.py"),
    "docs/how-to/confirmations.md": (2, "tests/test_docs.py"),
    "docs/how-to/durable.md": (1, "tests/test_docs.py"),
    "docs/how-to/functions.md": (4, "tests/test_docs.py"),
    "docs/how-to/learning.md": (2, "tests/test_docs.py"),
    "docs/how-to/mcp.md": (1, "tests/docs/test_python.py"),
    "docs/how-to/middleware.md": (1, "tests/test_docs.py"),
    "docs/how-to/models.md": (2, "tests/test_docs.py"),
    "docs/how-to/mount.md": (3, "tests/mounts/test_command.py"),
    "docs/how-to/nanoclaw.md": (2, "tests/test_docs.py"),
    "docs/how-to/pins.md": (1, "tests/docs/test_python.py"),
    "docs/how-to/services.md": (1, "tests/test_docs.py"),
    "docs/how-to/sessions.md": (2, "tests/test_docs.py"),
    "docs/how-to/testing.md": (3, "tests/testing/test_guide.py"),
    "docs/how-to/toolkit.md": (3, "tests/test_docs.py"),
    "docs/how-to/trustgraph.md": (2, "tests/test_docs.py"),
    "docs/reference/data-tools.md": (1, "tests/workers/test_graph_store.py"),
    "docs/reference/web-tools.md": (1, "tests/workers/test_web_services.py"),
    "docs/tutorial/getting-started.md": (1, "tests/test_docs.py"),
}

# The functions that the pages call, served for them under the names that they use.
TOOLS = '''
from toolbus import tool


@tool(effect="read")
def search(query: str) -> str:
    """Search."""
    return query


@tool(effect="read")
def create_issue(title: str) -> str:
    """Create an issue."""
    return title


@tool(effect="read")
def reverse_text(text: str) -> str:
    """Turn a text around."""
    return text[::-1]


@tool(effect="read")
def submit_task(spec: str) -> str:
    """Take a task."""
    return "create_1a2b3c4d"


@tool(effect="read")
def check_task_status(task_id: str) -> str:
    """Tell the state of a task."""
    return task_id


@tool(effect="read")
def get_current_time(timezone: str) -> str:
    """Tell the time."""
    return timezone


@tool(effect="read")
def total(numbers: list[float]) -> float:
    """Add numbers."""
    return sum(numbers)


@tool(name="tell-pun", effect="read")
def tell_pun(topic: str) -> str:
    """Tell a pun."""
    return topic


@tool(effect="read")
def line_counter(text: str) -> int:
    """Count lines."""
    return text.count(chr(10))


@tool(effect="read")
def weather(text: str, times: int = 1) -> str:
    """Repeat a text."""
    return text * times


@tool(effect="read")
def find(text: str, word: str) -> int:
    """Find a word."""
    return text.find(word)
'''
