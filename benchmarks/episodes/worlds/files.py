"""A file tree with a working directory."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

from benchmarks.episodes.worlds.world import Move, World, refuse

_NAMES = ("notes", "report", "draft", "data", "plan", "budget", "photo", "log")
_FOLDERS = ("docs", "src", "archive", "tmp", "media", "old")
_WORDS = ("alpha", "beta", "gamma", "delta", "total", "error", "done")


class Files(World):
    """Folders are objects, files are texts; ``cwd`` is the path of the working directory."""

    name = "files"

    def _prepare(self, chance: random.Random) -> None:
        self.cwd: list[str] = []
        self.tree: dict[str, Any] = {}
        for folder in chance.sample(_FOLDERS, 3):
            self.tree[folder] = {f"{name}.txt": " ".join(chance.choices(_WORDS, k=4)) for name in chance.sample(_NAMES, 2)}
        self.tree["readme.md"] = " ".join(chance.choices(_WORDS, k=6))

    def _here(self) -> dict[str, Any]:
        found = self.tree
        for part in self.cwd:
            found = found[part]
        return found

    def _entry(self, name: str) -> Any:
        here = self._here()
        if name not in here:
            raise refuse(f"no such entry in {self.pwd()}: {name}")
        return here[name]

    def _file(self, name: str) -> str:
        entry = self._entry(name)
        if not isinstance(entry, str):
            raise refuse(f"{name} is a folder")
        return entry

    def _free(self, name: str) -> None:
        if "/" in name or name in {"", ".", ".."}:
            raise refuse(f"{name!r} is no name of an entry")
        if name in self._here():
            raise refuse(f"{name} exists already in {self.pwd()}")

    def pwd(self) -> str:
        """Tell the working directory."""
        return "/" + "/".join(self.cwd)

    def ls(self, kind: Literal["all", "files", "folders"] = "all") -> dict[str, Any]:
        """List the working directory.

        Args:
            kind: which entries to list
        """
        wanted = {"all": (str, dict), "files": (str,), "folders": (dict,)}[kind]
        return {"path": self.pwd(), "entries": sorted(name for name, entry in self._here().items() if isinstance(entry, wanted))}

    def cd(self, folder: Annotated[str, "name of a folder here, or .. or /"]) -> str:
        """Change the working directory."""
        if folder == "/":
            self.cwd = []
        elif folder == "..":
            self.cwd = self.cwd[:-1]
        elif not isinstance(self._entry(folder), dict):
            raise refuse(f"{folder} is no folder")
        else:
            self.cwd = [*self.cwd, folder]
        return self.pwd()

    def mkdir(self, name: str) -> str:
        """Make a folder in the working directory."""
        self._free(name)
        self._here()[name] = {}
        return f"made {self.pwd().rstrip('/')}/{name}"

    def write(self, name: str, text: str, append: bool = False) -> dict[str, Any]:
        """Write a file in the working directory.

        Args:
            name: name of the file
            text: what it contains afterwards, or what is added to it
            append: add a line instead of replacing the text
        """
        here = self._here()
        if isinstance(here.get(name), dict):
            raise refuse(f"{name} is a folder")
        here[name] = f"{here[name]}\n{text}" if append and name in here else text
        return {"path": f"{self.pwd().rstrip('/')}/{name}", "lines": len(here[name].splitlines())}

    def cat(self, name: str) -> str:
        """Show the text of a file."""
        return f"{name}: {self._file(name)}"

    def grep(self, name: str, word: str, ignore_case: bool = False) -> dict[str, Any]:
        """Find the lines of a file that contain a word."""
        lines = self._file(name).splitlines()
        change = str.lower if ignore_case else str
        return {"file": name, "lines": [number for number, line in enumerate(lines, 1) if change(word) in change(line)]}

    def mv(self, source: str, target: str) -> str:
        """Rename an entry of the working directory, or move it into a folder here."""
        entry, here = self._entry(source), self._here()
        if source == target:
            raise refuse(f"{source} is there already")
        if isinstance(here.get(target), dict):
            if source in here[target]:
                raise refuse(f"{target} has an entry {source} already")
            here[target][source] = entry
        else:
            self._free(target)
            here[target] = entry
        del here[source]
        return f"moved {source} to {target}"

    def cp(self, source: str, target: str) -> str:
        """Copy a file under another name."""
        text = self._file(source)
        self._free(target)
        self._here()[target] = text
        return f"copied {source} to {target} in {self.pwd()}"

    def rm(self, name: str) -> str:
        """Remove a file, or an empty folder."""
        if self._entry(name) and isinstance(self._entry(name), dict):
            raise refuse(f"{name} is not empty")
        del self._here()[name]
        return f"removed {name} from {self.pwd()}"

    def find(self, text: Annotated[str, "a part of a name"]) -> list[str]:
        """List the paths of all entries with a text in their name."""
        found: list[str] = []

        def walk(path: str, folder: dict[str, Any]) -> None:
            for name, entry in folder.items():
                if text in name:
                    found.append(f"{path}/{name}")
                if isinstance(entry, dict):
                    walk(f"{path}/{name}", entry)

        walk("", self.tree)
        return sorted(found)

    def _propose(self, chance: random.Random) -> Move:
        here = self._here()
        files = sorted(name for name, entry in here.items() if isinstance(entry, str))
        folders = sorted(name for name, entry in here.items() if isinstance(entry, dict))
        new = f"{chance.choice(_NAMES)}{self.served}"
        text = " ".join(chance.choices(_WORDS, k=3))
        options: list[Move] = [
            ("mkdir", {"name": f"{chance.choice(_FOLDERS)}{self.served}"}),
            ("write", {"name": f"{new}.txt", "text": text}),
            ("pwd", {}),
            ("ls", {"kind": chance.choice(["all", "files", "folders"])}),
            ("find", {"text": chance.choice([*_NAMES, *_FOLDERS])}),
        ]
        if self.cwd:
            options += [("cd", {"folder": chance.choice(["..", "..", "/"])})] * 2
        if folders:
            options += [("cd", {"folder": chance.choice(folders)})] * 4
        if files:
            name = chance.choice(files)
            options += [
                ("write", {"name": name, "text": text, "append": True}),
                ("cat", {"name": name}),
                ("grep", {"name": name, "word": chance.choice(_WORDS), "ignore_case": chance.random() < 0.5}),
                ("mv", {"source": name, "target": chance.choice([*folders, f"{new}.md"])}),
                ("cp", {"source": name, "target": f"{new}.bak"}),
                ("rm", {"name": name}),
            ]
        return chance.choice(options)
