"""Parameters that are more than a name and a type: collected, injected, and with a schema of the author's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

from toolbus.bus.schema.derivation import derive
from toolbus.bus.values.results import DescriptorError

if TYPE_CHECKING:
    from elsewhere import Graph  # type: ignore[import-not-found]
from tests.schema.samples import Database, refused


def test_further_keyword_arguments_open_the_schema() -> None:
    """``**kwargs`` lets unknown arguments through, by its own type when it has one."""

    def loose(a: int, **rest: Any) -> None: ...

    def typed(a: int, **rest: int) -> None: ...

    assert "additionalProperties" not in derive(loose).parameters
    assert derive(loose).bind({"a": 1, "b": "x"}) == {"a": 1, "b": "x"}
    assert derive(typed).parameters["additionalProperties"] == {"type": "integer"}
    assert refused(derive(typed).bind, {"a": 1, "b": "x"}) == "Expected `int`, got `str` - at `$.b`"
    assert refused(derive(loose).bind, {"b": 1}) == "Missing required `a` - at `$.a`"
    assert refused(derive(loose).bind, {"a": 1, 3: 1})


def test_names_that_struct_fields_can_not_have_still_work() -> None:
    """Parameters named like attributes of a Struct, or in other alphabets, are ordinary."""

    def f(__init__: int, __struct_fields__: str, _x: int, größe: int, type: int = 0) -> None: ...  # noqa: PLC2401

    arguments = {"__init__": 1, "__struct_fields__": "s", "_x": 2, "größe": 3, "type": 4}
    assert derive(f).bind(arguments) == arguments
    assert refused(derive(f).bind, {**arguments, "größe": "x"}).startswith("Expected `int`, got `str` - at `$.größe`")


def test_positional_only_and_star_parameters_are_refused() -> None:
    """A function that can't be called by name says so, with its name and the parameter's."""

    def positional(a: int, /) -> None: ...

    def star(*rest: int) -> None: ...

    with pytest.raises(DescriptorError, match=r"positional takes 'a' by position only"):
        derive(positional)
    with pytest.raises(DescriptorError, match=r"star takes '\*rest'"):
        derive(star)


def test_a_callable_without_a_signature_is_refused() -> None:
    """Built-ins that show no signature ask to be wrapped."""
    with pytest.raises(DescriptorError, match="wrap it in a function"):
        derive(dict.update)


def test_injected_parameters_leave_the_schema() -> None:
    """Service types are reported, never described, and never taken from arguments."""

    def f(a: int, db: Database, maybe: Optional[Database] = None, other: Annotated[Database | None, "x"] = None) -> None: ...  # noqa: UP045

    for injected in ((Database,), {Database: 1}):
        derived = derive(f, injected=injected)
        assert list(derived.parameters["properties"]) == ["a"]
        assert derived.injected == {"db": Database, "maybe": Database, "other": Database}
        assert "Unexpected `db`" in refused(derived.bind, {"a": 1, "db": 1})


def test_an_injected_type_imported_for_type_checkers_only_is_found() -> None:
    """A string annotation may name a service type that the module never imports."""

    def f(graph: Graph, n: int) -> None: ...

    graph = type("Graph", (), {})
    derived = derive(f, injected=(graph,))
    assert derived.injected == {"graph": graph}
    assert list(derived.parameters["properties"]) == ["n"]


def test_injected_names_and_self_are_not_taken_through_kwargs() -> None:
    """Under ``**kwargs`` a caller can't smuggle in a service, or a second ``self``."""

    class Service:
        def run(self, db: Database, **rest: Any) -> None: ...

    derived = derive(Service.run, injected=(Database,), skip_self=True)
    assert derived.bind({"x": 1}) == {"x": 1}
    assert "Unexpected `db`" in refused(derived.bind, {"db": 1})
    assert "Unexpected `self`" in refused(derived.bind, {"self": 1})
    assert "Unexpected `self`" in refused(derive(Service().run, injected=(Database,)).bind, {"self": 1})
    explicit = derive(Service().run, parameters={}, injected=(Database,))
    assert explicit.bind({"x": 1}) == {"x": 1}
    assert "Unexpected `db`" in refused(explicit.bind, {"db": 1})


WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


def test_explicit_parameters_are_the_schema() -> None:
    """A schema of the author's is enforced and its arguments passed by name."""

    def weather(city: str, days: int = 1) -> None:
        """Report the weather."""

    derived = derive(weather, parameters=WEATHER)
    assert derived.parameters == WEATHER
    assert derived.description == "Report the weather."
    assert derived.bind({"city": "x", "days": 2}) == {"city": "x", "days": 2}
    assert refused(derived.bind, {"city": 3}).startswith("Expected `string`, got `integer` - at `$.city`")


def test_one_parameter_that_is_no_property_receives_the_whole_dict() -> None:
    """The convention ``handler(params)`` is kept, also beside injected parameters."""

    def weather(params: dict[str, Any], *, db: Database) -> None: ...

    derived = derive(weather, parameters=WEATHER, injected=(Database,))
    arguments = {"city": "x"}
    bound = derived.bind(arguments)
    assert bound == {"params": {"city": "x"}}
    assert bound["params"] is not arguments
    assert "$.city" in refused(derived.bind, {})


def test_a_single_parameter_that_is_a_property_is_passed_by_name() -> None:
    """With the one property's own name the function is an ordinary one."""

    def weather(city: str) -> None: ...

    assert derive(weather, parameters={"properties": {"city": {}}}).bind({"city": "x"}) == {"city": "x"}


def test_a_schema_and_a_function_that_do_not_fit_are_refused() -> None:
    """Properties the function doesn't take, and parameters the schema doesn't have, fail when the tool is defined."""

    def narrow(city: str, country: str = "") -> None: ...

    def greedy(city: str, days: int, token: str) -> None: ...

    def open_(city: str, **rest: Any) -> None: ...

    def whole(params: dict[str, Any], *, token: str) -> None: ...

    with pytest.raises(DescriptorError, match="takes no argument 'days'") as caught:
        derive(narrow, parameters=WEATHER)
    assert caught.value.path == "$.parameters.properties.days"
    with pytest.raises(DescriptorError, match="needs 'token'"):
        derive(greedy, parameters=WEATHER)
    with pytest.raises(DescriptorError, match="nothing is left for 'token'"):
        derive(whole, parameters=WEATHER)
    assert derive(open_, parameters=WEATHER).bind({"city": "x", "days": 1, "z": 1}) == {"city": "x", "days": 1, "z": 1}


def test_a_property_named_like_an_injected_parameter_is_refused() -> None:
    """A schema can't offer the model what only the worker may fill in."""

    def f(city: str, days: Database) -> None: ...

    with pytest.raises(DescriptorError, match="takes no argument 'days'"):
        derive(f, parameters=WEATHER, injected=(Database,))


def test_a_schema_looser_than_the_function_still_refuses() -> None:
    """Arguments that the schema accepts but the function can't take are refused, without a TypeError in the handler."""

    def f(city: str, days: int) -> None: ...

    derived = derive(f, parameters=WEATHER)
    assert (
        refused(derived.bind, {"city": "x", "z": 1})
        == "Unexpected `z` - at `$` (known: `city`, `days`); Missing required `days` - at `$.days`"
    )


@pytest.mark.parametrize(("schema", "path"), [({"type": "array"}, "$.parameters.type"), ({"required": 3}, "$.parameters.required")])
def test_explicit_parameters_must_be_a_possible_object_schema(schema: dict[str, Any], path: str) -> None:
    """An impossible schema fails when the tool is defined."""

    def f(a: int) -> None: ...

    with pytest.raises(DescriptorError) as caught:
        derive(f, parameters=schema)
    assert caught.value.path == path
