"""A command line that looks like docker's, where no daemon runs: an image is a folder, and a container a process on this machine.

It shows what our side asks for and in which order, and nothing of what a real engine does.
"""

from __future__ import annotations

from pathlib import Path

_PROGRAM = """#!{python}
import json, os, shutil, signal, subprocess, sys
from pathlib import Path

root, words = Path({root!r}), sys.argv[1:]
with (root / "log").open("a") as log:
    log.write(json.dumps(words) + chr(10))

def value(option):
    return words[words.index(option) + 1]

def missing(what):
    print("Error: No such " + what, file=sys.stderr)
    sys.exit(1)

def at(kind, name):
    return root / (kind + "-" + name.replace("/", "_").replace(":", "_"))

def alive(pid):
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True

if words[0] == "build":
    shutil.copytree(words[-1], at("image", value("--tag")), dirs_exist_ok=True)
    print("built")
elif words[:2] == ["image", "inspect"]:
    at("image", words[-1]).exists() or missing("image")
elif words[0] == "create":
    host, inside = value("--publish").split(":")[1:]
    image = at("image", words[-1])
    image.exists() or missing("image")
    at("container", value("--name")).write_text(json.dumps({{"image": str(image), "port": host, "pid": 0}}))
elif words[0] == "start":
    file = at("container", words[-1])
    made = json.loads(file.read_text())
    running = subprocess.Popen([{python!r}, "main.py", "--port", made["port"]], cwd=made["image"])
    file.write_text(json.dumps(made | {{"pid": running.pid}}))
    sys.exit(running.wait())
elif words[:2] == ["container", "inspect"]:
    file = at("container", words[-1])
    file.exists() or missing("container")
    made = json.loads(file.read_text())
    running = bool(made["pid"]) and alive(made["pid"])
    print(json.dumps([{{"Id": words[-1], "Name": words[-1], "State": {{"Running": running, "Pid": made["pid"], "ExitCode": 1}}}}]))
elif words[0] in ("kill", "rm"):
    file = at("container", words[-1])
    file.exists() or missing("container")
    made = json.loads(file.read_text())
    if made["pid"] and alive(made["pid"]):
        os.kill(made["pid"], signal.SIGKILL)
    if words[0] == "rm":
        file.unlink()
elif words[0] == "rmi":
    shutil.rmtree(at("image", words[-1]), ignore_errors=True)
elif words[0] == "ps":
    pass
else:
    missing("command")
"""


def install(folder: Path, python: str) -> Path:
    """Put it into a folder for ``PATH``, and return the folder with its images, containers and log."""
    root = folder / "engine"
    root.mkdir(parents=True)
    program = folder / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(_PROGRAM.format(python=python, root=str(root)))
    program.chmod(0o755)
    return root
