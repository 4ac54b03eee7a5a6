"""Names for models: what they look like, and that they never mean two tools."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from toolbus.bus.client.tools import tool as names
from toolbus.bus.client.tools.tool import is_replaced, replaced_names, wire_name

NAMES = st.one_of(
    st.text(min_size=1, max_size=128),
    st.text("ab-_.", min_size=1, max_size=70),
    st.from_regex(r"[a-c.]{0,3}--[a-z2-7]{12}", fullmatch=True),
)


@given(NAMES)
def test_every_name_has_one_that_models_may_say(name: str) -> None:
    """A wire name is 1 to 64 letters, digits, dashes and underscores; a name that is that already stays, unless it looks replaced."""
    made = wire_name(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", made)
    assert made == name or is_replaced(made)
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) and not is_replaced(name):
        assert made == name


@given(st.sets(NAMES, max_size=20))
def test_no_two_names_become_one(names: set[str]) -> None:
    """The mapping can be turned around: distinct names have distinct wire names, and each leads back."""
    made = {wire_name(name): name for name in names}
    assert len(made) == len(names)
    taken, refused = replaced_names(names)
    assert refused == {}
    assert {wire: name for wire, name in made.items() if wire != name} == taken


def test_a_wire_name_stays_the_same_for_ever() -> None:
    """A wire name depends on nothing but the name, so that it holds across restarts and releases."""
    assert wire_name("météo.paris") == "m_t_o_paris--" + wire_name("météo.paris")[-12:]
    assert wire_name("a.b") == "a_b--4kwbtil4nfda"
    assert wire_name("x" * 65) == "x" * 50 + "--" + wire_name("x" * 65)[-12:]


def test_the_wire_name_of_another_tool_is_no_name_of_ones_own() -> None:
    """A tool that is called like another's wire name gets a wire name of its own."""
    stolen = wire_name("a.b")
    assert wire_name(stolen) != stolen
    assert wire_name(wire_name(stolen)) != wire_name(stolen)


def test_a_collision_is_refused(monkeypatch) -> None:
    """The first of two names with one wire name keeps it, and the second is refused."""
    monkeypatch.setattr(names, "wire_name", lambda name: "same--aaaaaaaaaaaa")
    assert replaced_names(["b.b", "a.a"]) == ({"same--aaaaaaaaaaaa": "a.a"}, {"b.b": "a.a"})
