"""Revisions: kept, compared, taken back, and safe against crashes and other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.learning.samples import calls, scores
from toolbus import ConfigurationError
from toolbus.toolkit.learning import Execution, Parameters, Revision, Revisions, episodes, learn
from toolbus.toolkit.learning.revisions import difference, digest

STATIC = scores(count={"sql": 0.9, "grep": 0.4})
LOG = calls("sql", [False] * 60 + [True] * 6) + calls("grep", [True] * 60, first=100)
# The same, and then sql is mended.
LATER = LOG + calls("sql", [True] * 400, first=1000, at=LOG[-1].at + 90 * 86_400)


def add(revisions: Revisions, log: list[Execution]) -> Revision | None:
    """Learn from a log and keep it."""
    logged, parameters = episodes(log), Parameters()
    return revisions.add(STATIC, learn(STATIC, logged, parameters), digest(logged), parameters)


def test_a_revision_says_where_it_comes_from(tmp_path: Path) -> None:
    """The static scores come first; what was learned names its parent, log, parameters and reasons, and reads back the same."""
    revisions = Revisions(tmp_path / "deep" / "revisions")
    assert (revisions.current(), revisions.ids()) == (None, [])
    made = add(revisions, LOG)
    assert made is not None
    first, second = revisions.ids()
    assert (made.id, made.parent, made.created_at > 1.7e9) == (second, first, True)
    assert revisions.get(first).scores == STATIC
    assert made.log is not None
    assert (made.log.episodes, made.log.executions, made.log.last) == (126, 126, LOG[-1].at)
    assert made.parameters == Parameters()
    assert [(each.target, each.old) for each in made.changes] == [("grep", 0.4), ("sql", 0.9)]
    assert revisions.current() == revisions.get(second) == revisions.get("2") == made


def test_what_changes_nothing_makes_no_revision(tmp_path: Path) -> None:
    """Learning twice from one log keeps one revision, however the log is ordered."""
    revisions = Revisions(tmp_path)
    assert add(revisions, LOG) is not None
    assert add(revisions, LOG[::-1]) is None
    assert len(revisions.ids()) == 2
    assert digest(episodes(LOG)) == digest(episodes(LOG[::-1]))


def test_revisions_are_compared_and_taken_back(tmp_path: Path) -> None:
    """A rollback makes the parent current and deletes nothing; what is learned afterwards descends from it."""
    revisions = Revisions(tmp_path)
    made = add(revisions, LOG)
    assert made is not None
    left, back = revisions.roll_back()
    assert (left, back.scores, revisions.current()) == (made, STATIC, back)
    assert [(each.target, each.old, each.new) for each in difference(back.scores, made.scores)] == [
        ("grep", 0.4, made.scores.score("call", "count", "grep")),
        ("sql", 0.9, made.scores.score("call", "count", "sql")),
    ]
    with pytest.raises(ConfigurationError, match="there is none before it"):
        revisions.roll_back()
    assert revisions.roll_back("2")[1] == made
    revisions.roll_back("1")
    again = add(revisions, LATER)
    assert again is not None
    assert again.parent == back.id
    assert len(revisions.ids()) == 3


def test_changes_are_against_the_parent_and_reasons_against_the_static_scores(tmp_path: Path) -> None:
    """A score that evidence no longer supports goes back to the static one, and the revision says so."""
    revisions = Revisions(tmp_path)
    add(revisions, LOG)
    before = revisions.current()
    made = add(revisions, LATER)
    assert made is not None
    assert before is not None
    changes = {each.target: each for each in made.changes}
    assert changes["sql"].old == before.scores.score("call", "count", "sql")
    assert (changes["sql"].new > 0.8, changes["sql"].static) == (True, 0.9)
    assert changes["grep"].new == 0.4
    assert "back to the static score" in changes["grep"].why


def test_unknown_revisions_and_broken_files_are_errors(tmp_path: Path) -> None:
    """An id that is not there lists those that are; a broken file is named, and so is a pointer to nothing."""
    revisions = Revisions(tmp_path)
    made = add(revisions, LOG)
    assert made is not None
    with pytest.raises(ConfigurationError, match=f"no revision '9'; the newest are: .*{made.id}"):
        revisions.get("9")
    with pytest.raises(ConfigurationError, match="no revision"):
        revisions.get("../../etc/passwd")
    path = tmp_path / f"{made.id}.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ConfigurationError, match=f"{made.id}.json is not a valid revision"):
        revisions.current()
    path.write_bytes(whole.replace(b'"score": 0.', b'"score": 7.', 1))
    with pytest.raises(ConfigurationError, match=r"\$\.edges\[0\]\.score"):
        revisions.current()
    path.unlink()
    with pytest.raises(ConfigurationError, match="no revision"):
        revisions.roll_back()
    assert revisions.roll_back("1")[0] is None
    assert revisions.current() == revisions.get("1")


def test_old_revisions_are_deleted(tmp_path: Path) -> None:
    """A folder keeps its newest revisions, and always the current one."""
    revisions = Revisions(tmp_path, keep=3)
    for number in range(6):
        add(revisions, LOG if number % 2 else LATER)
    assert [each.partition("-")[0] for each in revisions.ids()] == ["0005", "0006", "0007"]
    current = revisions.current()
    assert current is not None
    assert current.id == revisions.ids()[-1]


WRITER = """
import sys
from tests.learning.test_revisions import LATER, LOG, add
from toolbus.toolkit.learning import Revisions
for number in range(8):
    add(Revisions(sys.argv[1]), LOG if number % 2 else LATER)
"""


@pytest.mark.usefixtures("slow")
def test_processes_add_revisions_together(tmp_path: Path) -> None:
    """Revisions of three processes have numbers of their own, each descends from one that is there, and no part of a file is left."""
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    revisions = Revisions(tmp_path)
    found = [revisions.get(each) for each in revisions.ids()]
    assert [int(each.id.partition("-")[0]) for each in found] == [*range(1, len(found) + 1)]
    assert [each.parent for each in found] == ["", *(each.id for each in found[:-1])]
    assert revisions.current() == found[-1]
    others = {path.name for path in tmp_path.iterdir()} - {f"{each.id}.json" for each in found}
    assert others == {"current"}


def test_a_crash_between_the_two_files_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revision that was written but not made current is a revision like others; the one before still holds."""
    revisions = Revisions(tmp_path)
    add(revisions, LOG)
    before = revisions.current()
    real = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if Path(target).name == "current":
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ConfigurationError, match="No space left on device"):
        add(revisions, LATER)
    monkeypatch.undo()
    assert revisions.current() == before
    assert len(revisions.ids()) == 3
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".current.")]
    assert msgspec.json.decode((tmp_path / f"{revisions.ids()[-1]}.json").read_bytes(), type=Revision).parent == getattr(before, "id", "")
