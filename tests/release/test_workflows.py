"""The workflows: pinned actions, least rights, and steps that are targets of make."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.release.project import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
RELEASE = FOLDER / "release.yml"


def content(path: Path) -> dict[Any, Any]:
    """Return a workflow. YAML 1.1 reads its key ``on`` as true."""
    read: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return read


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs of a workflow."""
    found: dict[str, dict[str, Any]] = content(path)["jobs"]
    return found


def tool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the tests' environment."""
    name, *rest = map(str, words)
    program = Path(sys.prefix) / "bin" / name
    return subprocess.run([program, *rest], capture_output=True, text=True, check=False, timeout=100)


def test_actions_are_pinned_by_commit() -> None:
    """Each is named by a whole commit with its version beside it, and each action by one commit everywhere."""
    found: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for line in re.findall(r"uses: (.*)$", path.read_text("utf-8"), re.MULTILINE):
            pinned = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line)
            assert pinned, f"{path.name}: {line}"
            found.setdefault(pinned[1], set()).add(f"{pinned[2]} {pinned[3]}")
    assert {name: commits for name, commits in found.items() if len(commits) > 1} == {}


@pytest.mark.usefixtures("slow")
def test_a_workflow_is_one() -> None:
    """GitHub's own schema accepts each."""
    done = tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_the_workflows_are_safe() -> None:
    """zizmor finds nothing: no credentials left behind, no text of others in scripts, no cache that others can fill."""
    done = tool("zizmor", "--offline", "--quiet", "--no-progress", FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_target_of_make_exists(path: Path) -> None:
    """A step that runs make names a target of the Makefile, so that it can be tried anywhere."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = re.findall(
        r"^(?:make) ([a-z-]+)", "\n".join(step.get("run", "") for job in jobs(path).values() for step in job["steps"]), re.MULTILINE
    )
    assert set(named) <= targets


def test_a_release_begins_with_a_tag() -> None:
    """Nothing else starts it, and two of one tag do not run at once."""
    assert content(RELEASE)[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}
    assert content(RELEASE)["concurrency"]["cancel-in-progress"] is False


def test_each_job_of_a_release_has_the_least_rights() -> None:
    """The workflow has none; whoever signs or publishes runs no code of the project but for the image's own build."""
    assert content(RELEASE)["permissions"] == {}
    rights = {
        name: {right for right, level in job.get("permissions", {}).items() if level == "write"} for name, job in jobs(RELEASE).items()
    }
    assert rights == {
        "build": set(),
        "test": set(),
        "attest": {"attestations", "id-token"},
        "pypi": {"id-token"},
        "image": {"attestations", "id-token", "packages"},
        "github": {"contents"},
    }
    for name, job in jobs(RELEASE).items():
        checks_out = any(step.get("uses", "").startswith("actions/checkout@") for step in job["steps"])
        runs_make = any(step.get("run", "").startswith("make ") for step in job["steps"])
        assert checks_out == (name in {"build", "test", "image"})
        assert runs_make == (not rights[name])
        assert job["timeout-minutes"] <= 60


def test_nothing_is_published_before_it_is_tested_and_signed() -> None:
    """The packages need their attestations, the release needs the packages and the image, and all of it needs the tests."""
    needs = {name: set(job.get("needs", [])) for name, job in jobs(RELEASE).items()}
    assert needs["attest"] == needs["image"] == {"build", "test"}
    assert needs["pypi"] == {"attest"}
    assert needs["github"] == {"pypi", "image"}


def test_a_release_says_where_it_comes_from() -> None:
    """Packages are published by trust in the workflow, with attestations; the image has provenance and a bill of its contents."""
    steps = {name: job["steps"] for name, job in jobs(RELEASE).items()}
    [publish] = [step for step in steps["pypi"] if step["uses"].startswith("pypa/gh-action-pypi-publish@")]
    assert publish["with"] == {"attestations": True}
    [image] = [step for step in steps["image"] if step.get("uses", "").startswith("docker/build-push-action@")]
    assert (image["with"]["provenance"], image["with"]["sbom"]) == ("mode=max", True)
    attests = [step["with"] for name in ("attest", "image") for step in steps[name] if step.get("uses", "").startswith("actions/attest@")]
    assert [sorted(each) for each in attests] == [
        ["subject-path"],
        ["sbom-path", "subject-path"],
        ["push-to-registry", "subject-digest", "subject-name"],
    ]
    assert "secrets." not in RELEASE.read_text("utf-8")
