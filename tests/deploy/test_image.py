"""The image: what it is made of is pinned, and one that is built here serves calls without rights."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
import urllib.request
from collections.abc import Iterator

import pytest

from tests.deploy.base_image import import_base
from tests.deploy.chart import DEPLOY
from tests.servers import eventually_sync
from toolbus.bus.broker.transport.embedded import free_port

ROOT = DEPLOY.parent
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
BASE, IMAGE = "toolbus-test-base", "toolbus-test-image"
CONFINED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "host")
# Megabytes that we add to the image of Python, unpacked.
_MOST = 120


def pinned(name: str) -> dict[str, list[str]]:
    """Return the hashes of each package of a file of constraints."""
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    found = [line.split() for line in text.splitlines() if line.strip()]
    return {words[0].partition("==")[0]: [word for word in words if word.startswith("--hash=sha256:")] for words in found}


def test_every_package_of_the_image_is_pinned_with_its_hashes() -> None:
    """All that toolbus needs for what the image can do is in the list, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"^IMAGE_EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    needed = [*project["dependencies"], *(each for extra in extras.split() for each in project["optional-dependencies"][extra])]
    names = {re.split(r"[\[<>=!; ]", requirement)[0].lower() for requirement in needed}
    packages = pinned("constraints.txt")
    assert names <= packages.keys()
    assert "hatchling" in pinned("build-constraints.txt")
    assert all(hashes for hashes in [*packages.values(), *pinned("build-constraints.txt").values()])


def test_what_is_copied_into_the_image_is_there() -> None:
    """And it is let through to the builder, which sees nothing else."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for words in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for name in words.split()}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_has_no_root_and_no_build_tools() -> None:
    """The environment is copied from the stage that was built, and runs as a user by number, which Kubernetes can check."""
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in last
    assert "\nRUN " not in last
    assert 'ENTRYPOINT ["toolbus"]' in last


def _docker(*words: str, check: bool = True, timeout: float = 300) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=check, timeout=timeout).stdout


def _is_asked() -> bool:
    """Return whether the image is to be built, which takes minutes, and docker runs."""
    if os.environ.get("TOOLBUS_TEST_IMAGE", "") in {"", "0"} or shutil.which("docker") is None:
        return False
    return bool(_docker("info", "--format", "{{.ServerVersion}}", check=False).strip())


@pytest.fixture
def image() -> str:
    """Return the image, built on the Python that runs the tests."""
    if not _docker("images", "-q", BASE):
        import_base(BASE)
    words = ["build", "--quiet", "--network", "host", "--build-arg", f"BASE={BASE}", "--tag", IMAGE, "--file", str(DEPLOY / "Dockerfile")]
    _docker(*words, str(ROOT), timeout=1000)
    return IMAGE


@pytest.fixture
def worker(image: str, server: str, namespace: str) -> Iterator[tuple[str, int]]:
    """Return the name of a container in which a worker serves, and its health port."""
    name, port = f"toolbus-test-{namespace}", free_port()
    about = ["--env", f"TOOLBUS_URL={server}", "--env", f"TOOLBUS_NAMESPACE={namespace}"]
    words = ["run", "--detach", "--name", name, *CONFINED, *about, image, "worker", "calculator", "--processes", "2"]
    _docker(*words, "--health-port", str(port))
    try:
        yield name, port
    finally:
        _docker("rm", "--force", name)


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not _is_asked(), reason="it takes minutes: `make test-image` runs it where docker runs")
def test_the_image_serves_calls_without_rights(worker: tuple[str, int], server: str, namespace: str) -> None:
    """Its root is read-only, its user is nobody, it drains when it is stopped, and what we add to Python is small."""
    name, port = worker

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=20) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    eventually_sync(ready, timeout=100)
    about = ["--env", f"TOOLBUS_URL={server}", "--env", f"TOOLBUS_NAMESPACE={namespace}"]
    assert _docker("run", "--rm", *CONFINED, *about, IMAGE, "call", "calculator", "expression=6*7") == "42\n"
    assert _docker("exec", name, "id", "-u") == "10001\n"
    assert subprocess.run(["docker", "exec", name, "touch", "/x"], capture_output=True, timeout=100, check=False).returncode == 1
    _docker("stop", "--time", "60", name)
    assert json.loads(_docker("inspect", name))[0]["State"]["ExitCode"] == 0
    sizes = [int(_docker("image", "inspect", "--format", "{{.Size}}", each)) for each in (IMAGE, BASE)]
    assert (sizes[0] - sizes[1]) / 1e6 <= _MOST
