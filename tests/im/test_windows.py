"""All windows of a contact: one that can't be used is told, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbus.agent.im.window import Message, Windows, folder_of
from toolbus.bus.values.results import ConfigurationError


def _message(chat_id: str) -> Message:
    return Message(id="m1", sender="ann", sender_chat_id="hers", receiver_chat_id=chat_id, content="hello")


def test_one_window_that_cannot_be_used_stops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its messages are refused, and those of the other windows are kept."""
    with Windows(tmp_path) as windows:
        for chat in ("good", "bad"):
            [window] = windows.of(_message(chat))
            assert window.take(_message(chat))
    pending = tmp_path / "windows" / folder_of("ann/bad") / "pending.json"
    pending.unlink()
    pending.mkdir()
    with Windows(tmp_path) as windows:
        assert windows.ids == ["ann/good"]
        assert "im.unreadable" in caplog.text
        [window] = windows.of(_message("good"))
        assert [each.message.id for each in window.pending] == ["m1"]
        with pytest.raises(ConfigurationError, match="can't be kept"):
            windows.of(_message("bad"))


@pytest.mark.parametrize("linked", ["", "pending.json", "chatbox.jsonl"])
def test_links_are_not_followed(tmp_path: Path, linked: str) -> None:
    """A link in place of a window, or of a file of it, is refused, and what it leads to stays as it is."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    state = tmp_path / "state"
    with Windows(state) as windows:
        windows.of(_message("one"))
    folder = state / "windows" / folder_of("ann/one")
    if linked:
        (folder / linked).unlink(missing_ok=True)
        (folder / linked).symlink_to(outside / "file")
    else:
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()
        folder.symlink_to(outside)
    with Windows(state) as windows:
        assert windows.ids == []
        with pytest.raises(ConfigurationError, match="a link"):
            windows.of(_message("one"))
    assert [each.name for each in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "mine"


def test_a_window_belongs_to_who_speaks_in_it(tmp_path: Path) -> None:
    """A sender that names another's window gets one of its own; only those that were said to be shared are."""

    def sent(sender: str, window: str = "", chat: str = "c") -> Message:
        return Message(id="m", sender=sender, sender_chat_id=chat, receiver_chat_id=window, content="hello")

    with Windows(tmp_path, ["team"]) as windows:
        for sender in ("ann", "bob", "", "*", "ann/w", "ä" * 255):
            [window] = windows.of(sent(sender, "w"))
            assert window.name == "w"
            assert window.pending == []
            assert window.take(sent(sender, "w"))
            assert len(window.chat_id) <= 255
        assert len(windows.ids) == 6
        assert windows.names == ["w"]
        [mine] = windows.of(sent("ann"))
        assert mine.chat_id == "ann/w"
        [team] = windows.of(sent("ann", "team"))
        assert windows.of(sent("bob", "team")) == [team]
        assert team.chat_id == "*/team"
        assert windows.of(sent("bob")) == [windows.of(sent("bob", "w"))[0], team]
        # One that names nobody is known by its own window.
        assert windows.of(sent("", "w", "c2")) != windows.of(sent("", "w"))
    with Windows(tmp_path, ["team"]) as windows:
        assert {each.chat_id: each.name for each in windows.all()}["ann/w"] == "w"
        assert len(windows.of(sent("ann", "w"))[0].pending) == 1
