"""A base image for builds without a registry: the Python that runs the tests, a shell, and the libraries that they need."""

from __future__ import annotations

import io
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

# Packages of the machine are not part of Python, and tests of Python are not part of what runs.
_LEFT_OUT = ("site-packages", "test", "tests", "idlelib", "turtledemo", "__pycache__", "config-3", "include", "share")
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
_PROGRAMS = ("sh", "env", "cat", "id", "touch", "ls")


def import_base(tag: str) -> None:
    """Make the image under a name."""
    prefix = Path(sys.base_prefix)
    files = [path for path in prefix.rglob("*") if not any(part.startswith(_LEFT_OUT) for part in path.relative_to(prefix).parts)]
    pip = next((prefix / "lib").glob("python3*/site-packages/pip"))
    files += [path for path in pip.rglob("*") if path.suffix != ".pyc"]
    programs = [Path(found) for name in _PROGRAMS if (found := shutil.which(name))]
    binaries = [path for path in files if path.is_file() and (path.suffix == ".so" or ".so." in path.name or path.parent.name == "bin")]
    authorities = ssl.get_default_verify_paths().cafile or _AUTHORITIES
    contents: dict[str, Path | bytes] = {str(path): path for path in files if path.is_symlink() or not path.is_dir()}
    # Links of the machine's own folders are followed, so that each file stands where it is looked for.
    contents |= {str(path): path.resolve() for path in [*programs, *_libraries([*binaries, *programs])]}
    contents |= {"/bin/sh": Path("/bin/sh").resolve(), _AUTHORITIES: Path(authorities).resolve()}
    contents |= {"/etc/nsswitch.conf": b"hosts: files dns\n", "/etc/passwd": b"root:x:0:0::/:/bin/sh\n"}
    # A folder that an archive does not name is its owner's alone.
    folders = sorted({str(parent) for place in contents for parent in Path(place).parents} - {"/"})
    with tarfile.open(fileobj=(archive := io.BytesIO()), mode="w") as tar:
        for place in [*folders, "/tmp"]:
            folder = tarfile.TarInfo(place)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if place == "/tmp" else 0o755
            tar.addfile(folder)
        for place, content in contents.items():
            if isinstance(content, Path):
                tar.add(content, arcname=place, recursive=False, filter=_readable)
            else:
                member = tarfile.TarInfo(place)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    settings = [f"ENV PATH={prefix}/bin:/usr/bin:/bin", f"ENV PIP_CERT={_AUTHORITIES}", f"ENV SSL_CERT_FILE={_AUTHORITIES}"]
    changes = [word for setting in settings for word in ("--change", setting)]
    subprocess.run(["docker", "import", *changes, "-", tag], input=archive.getvalue(), check=True, stdout=subprocess.DEVNULL, timeout=300)


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Let any user read a file, and run it if its owner may."""
    member.mode |= 0o444 | (member.mode & 0o100 and 0o111)
    return member


def _libraries(binaries: list[Path]) -> Iterator[Path]:
    """Return the shared libraries of programs, and the loader."""
    told = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False, timeout=100).stdout
    for found in sorted(set(re.findall(r"(?:=> |^\t)(/\S+)", told, re.MULTILINE))):
        yield Path(found)
