"""Make an image of this machine's own Python, for places that can't fetch one: run it, then build the Dockerfile beside it."""

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

IMAGE = "toolbus-example/python"

# What a small program does not need.
LEFT_OUT = {
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "config",
}


def libraries(program: Path) -> set[Path]:
    """Return the shared libraries that a program or an extension module is linked with."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    return {Path(word) for line in said.splitlines() for word in line.split() if word.startswith("/")}


def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an entry of the standard library, or None to leave it out."""
    name = Path(entry.name).name
    return None if name in LEFT_OUT or name.startswith("config-") else entry


def main() -> None:
    """Write the files of the interpreter into an image."""
    python = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}").resolve()
    standard = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
    extensions = (standard / "lib-dynload").glob("*.so")
    linked = set().union(*(libraries(each) for each in (python, *extensions)))
    changes = ["ENV PYTHONDONTWRITEBYTECODE=1", f"ENV PATH={python.parent}:/usr/bin:/bin"]
    words = [word for change in changes for word in ("--change", change)]
    with (
        subprocess.Popen(["docker", "import", *words, "-", IMAGE], stdin=subprocess.PIPE) as importing,
        tarfile.open(fileobj=importing.stdin, mode="w|", dereference=True) as tar,
    ):
        tar.add(standard, str(standard), filter=kept)
        tar.add(python, str(python))
        tar.add(python, str(python.parent / "python3"))
        for each in sorted(linked):
            tar.add(each, str(each))
    sys.exit(importing.returncode)


if __name__ == "__main__":
    main()
