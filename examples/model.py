"""Plays a model for the agents in this folder, so that they run without a key and without a network.

    python model.py agents/openai_chat.py        # any program, or -m MODULE, with its arguments

It listens on this machine, speaks like OpenAI (chat completions and responses) and like Anthropic (messages), and tells the program
so in the environment. Run the agent by itself, with a key of yours, and a real model answers.
"""

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

numbers = count(1)


def think(observations, offered):
    """Return the next call, as a tool and its arguments, or the answer. This is the whole model."""
    if not {"find_trains", "count_free_seats"} <= offered:
        return "I need find_trains and count_free_seats, and was not given them. Are they served? toolbus worker tools.py"
    if not observations:
        return "find_trains", {"start": "Oslo", "to": "Bergen"}
    if len(observations) == 1:
        return "count_free_seats", {"trains": re.findall(r'"train":\s*"(\w+)"', observations[0])}
    free = {train: int(seats) for train, seats in re.findall(r"(\w+): (\d+) free", observations[-1])}
    return f"Take {max(free, key=free.get)}: it has {max(free.values())} free seats." if free else observations[-1]


def text(content):
    """Return the text of an observation, which may come in parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def observations(body):
    """Return what tools have answered to the latest question, in any of the three dialects."""
    found = []
    for item in body.get("messages") or body.get("input") or []:
        parts = item.get("content") if isinstance(item.get("content"), list) else []
        results = [part for part in parts if part.get("type") == "tool_result"]
        if item.get("role") == "user" and not results:
            found = []
        elif item.get("role") == "tool":
            found.append(text(item["content"]))
        elif item.get("type") == "function_call_output":
            found.append(text(item["output"]))
        found += [text(part["content"]) for part in results]
    return found


def chat(said, id):
    """Write a chat completion."""
    message = {"role": "assistant", "content": said if isinstance(said, str) else None}
    if not isinstance(said, str):
        message["tool_calls"] = [{"id": id, "type": "function", "function": {"name": said[0], "arguments": json.dumps(said[1])}}]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if isinstance(said, str) else "tool_calls"}
    return {"id": id, "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}


def responses(said, id):
    """Write a response."""
    item = {"type": "function_call", "id": f"f{id}", "call_id": id, "name": said[0], "arguments": json.dumps(said[1])}
    if isinstance(said, str):
        words = {"type": "output_text", "text": said, "annotations": []}
        item = {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [words]}
    fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": f"r{id}", "object": "response", "created_at": 1, "model": "scripted", "output": [item], **fixed}


def messages(said, id):
    """Write a message."""
    is_text = isinstance(said, str)
    block = {"type": "text", "text": said} if is_text else {"type": "tool_use", "id": id, "name": said[0], "input": said[1]}
    fixed = {"stop_reason": "end_turn" if is_text else "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1}}
    return {"id": f"m{id}", "type": "message", "role": "assistant", "model": "scripted", "content": [block], **fixed}


def events(completion):
    """Write a chat completion as a stream of one piece."""
    [choice] = completion["choices"]
    delta = choice.pop("message")
    for index, call in enumerate(delta.get("tool_calls", [])):
        call["index"] = index
    piece = {**completion, "object": "chat.completion.chunk", "choices": [{**choice, "delta": delta}]}
    return f"data: {json.dumps(piece)}\n\ndata: [DONE]\n\n"


class Endpoint(BaseHTTPRequestHandler):
    """Answers each request with what the model thinks."""

    def do_POST(self):
        """Answer in the dialect of the path."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        dialect = {"completions": chat, "responses": responses, "messages": messages}[self.path.split("?")[0].rpartition("/")[2]]
        offered = {tool.get("name") or tool["function"]["name"] for tool in body.get("tools", [])}
        answer = dialect(think(observations(body), offered), f"call_{next(numbers)}")
        streams = dialect is chat and body.get("stream")
        data = (events(answer) if streams else json.dumps(answer)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        """Print nothing: the program's own output is what counts."""


def main(words):
    """Run a program beside the endpoint; return its exit code."""
    if not words or words[0] in {"-h", "--help"}:
        print(__doc__)
        return 0 if words else 2
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        fixed = {"NO_PROXY": "127.0.0.1", "OPENAI_MODEL": "scripted", "ANTHROPIC_MODEL": "scripted", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        openai = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none"}
        anthropic = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none"}
        process = subprocess.Popen([sys.executable, *words], env={**os.environ, **fixed, **openai, **anthropic})
        while process.returncode is None:
            with suppress(KeyboardInterrupt):  # Ctrl-C has reached the program, too: it ends by itself
                process.wait()
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
