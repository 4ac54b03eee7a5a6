"""The files of a window after a crash, and after a person's hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbus.agent.im.window import Message, Window, chat_of, folder_of
from toolbus.bus.values.results import ConfigurationError


def message(id: str, content: str = "hello") -> Message:
    """A message."""
    return Message(id=id, content=content, sender="alice", sender_chat_id="a")


@pytest.mark.parametrize("torn", [b'{"kind": "mess', b"\x00" * 100, b'{"kind":"answer","id":"m1"}', b"x" * 70_000])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    """A line without its end is not read, and the next line stands alone."""
    Window(tmp_path, "w").take(message("m1"))
    with (tmp_path / "chatbox.jsonl").open("ab") as file:
        file.write(torn)
    window = Window(tmp_path, "w")
    assert [each.message.id for each in window.pending] == ["m1"]
    window.answer(window.pending[0], "yes")
    window.sent(window.pending[0], "me")
    lines = (tmp_path / "chatbox.jsonl").read_bytes().splitlines()
    assert len(lines) == 2
    assert Window(tmp_path, "w").pending == []


@pytest.mark.parametrize("junk", ["", "{", "[]", '{"chat_id": 5}', '{"chat_id": "w", "pending": [{}]}'])
def test_an_unreadable_file_is_put_aside(tmp_path: Path, junk: str) -> None:
    """A pending.json that nothing of toolbus wrote stays beside, and the window goes on."""
    Window(tmp_path, "w").take(message("m1"))
    (tmp_path / "pending.json").write_text(junk)
    window = Window(tmp_path, "w")
    assert window.pending == []
    assert (tmp_path / "pending.unreadable.json").read_text() == junk
    assert window.take(message("m2"))


def test_lines_of_others_in_the_chatbox_are_passed_over(tmp_path: Path) -> None:
    """A line that is no entry hides no other one."""
    (tmp_path / "chatbox.jsonl").write_bytes(
        b'junk\n{"kind":"answer","id":"m1","sender":"me","to":"alice","sender_chat_id":"a","content":"","at":1}\n\xff\n'
    )
    window = Window(tmp_path, "w")
    assert not window.take(message("m1"))
    assert window.take(message("m2"))


def test_the_same_id_of_two_senders_is_two_messages(tmp_path: Path) -> None:
    """Ids are unique among the messages of a sender's window, and no further; each is answered under an id of its own."""
    window = Window(tmp_path, "w")
    others = [
        Message(id="m1", content="x", sender="alice", sender_chat_id="b"),
        Message(id="m1", content="y", sender="bob", sender_chat_id="a"),
    ]
    for each in (message("m1"), *others):
        assert window.take(each)
    assert not window.take(message("m1"))
    assert len({window.reply(each, "me").id for each in window.pending}) == 3
    window.answer(window.pending[2], "yes, bob")
    window.sent(window.pending[2], "me")
    again = Window(tmp_path, "w")
    assert [each.message.sender for each in again.pending] == ["alice", "alice"]
    assert not any(again.take(each) for each in (message("m1"), *others))


@pytest.mark.parametrize("chat_id", ["a", "..", ".", "/", "../../x", "a/b", "é" * 100, "x" * 255, "%2F", "nul\x7f", "~"])
def test_names_of_folders(tmp_path: Path, chat_id: str) -> None:
    """Each id has a folder of its own, directly in the folder of windows, and is read back from it."""
    name = folder_of(chat_id)
    assert "/" not in name
    assert name not in {"", ".", ".."}
    assert len(name.encode()) <= 255
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()
    Window(tmp_path / name, chat_id)
    assert chat_of(tmp_path / name) == chat_id


def test_different_ids_have_different_folders() -> None:
    """No two ids share a folder."""
    ids = ["a/b", "a%2Fb", "a.b", "A.b", "x" * 254, "x" * 255, "x" * 253 + "yz"]
    assert len({folder_of(each) for each in ids}) == len(ids)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A file in the folder's place is one error that names it."""
    (tmp_path / "w").write_text("")
    with pytest.raises(ConfigurationError, match="can't be kept in"):
        Window(tmp_path / "w", "w")
