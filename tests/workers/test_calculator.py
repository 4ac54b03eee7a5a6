"""The calculator: Python's arithmetic, errors with codes, and no expression that costs much."""

import math
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toolbus_workers.calculator import MAX_DEPTH, MAX_DIGITS, MAX_LENGTH, CalculatorService, calculator, evaluate

from tests.examples import examples
from toolbus import ToolBus, ToolError, Worker


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 / 2", 3.5),
        ("8 / 2", 4.0),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("2 ** 3 ** 2", 512),
        ("-2 ** 2", -4),
        ("2 ** -1", 0.5),
        ("+-+3", -3),
        ("1_000 + .5", 1000.5),
        ("1e3", 1000.0),
        ("2 ** 200", 2**200),
        ("sqrt(16)", 4.0),
        ("log(8, 2)", 3.0),
        ("log10(1000)", 3.0),
        ("sin(pi / 2) + cos(0) + tan(0)", 2.0),
        ("exp(0) + log(e)", 2.0),
        ("tau / pi", 2.0),
        ("round(2.567, 2)", 2.57),
        ("round(2.5)", 2),
        ("round(1234, -2)", 1200),
        ("floor(-1.5) + ceil(1.2)", 0),
        ("min(3, 1, 2) + max(4)", 5),
        ("abs(-3)", 3),
        ("factorial(20)", math.factorial(20)),
        ("gcd(12, 18, 27)", 3),
        ("6 × 7 ÷ 2 − 1", 20.0),
        (" 2\n + 2 ", 4),
    ],
)
def test_expressions_have_the_values_that_python_gives_them(expression, value):
    """The value and its type are Python's own."""
    result = evaluate(expression)
    assert result == value
    assert type(result) is type(value)


def test_the_tool_answers_with_data_and_text():
    """Programs read ``data["result"]``, people and models the text."""
    result = calculator("2 ** 64 + 1")
    assert result.success
    assert result.data == {"result": 2**64 + 1}
    assert result.output == "18446744073709551617"


@pytest.mark.parametrize(
    ("expression", "code", "message"),
    [
        ("", "empty", "empty"),
        ("   ", "empty", "empty"),
        ("1 +", "syntax", "to its end: something is missing"),
        ("1 + * 2", "syntax", "at position 5"),
        ("(1", "syntax", "can't be read"),
        ("1 2", "syntax", "can't be read"),
        ("2 ^ 3", "syntax", r"a power is written \*\*"),
        ("'a' * 3", "syntax", "unexpected"),
        ("2pi", "syntax", r"2\*pi"),
        ("1or 2", "syntax", "unexpected 'or'"),
        ("0x1for 2", "syntax", "unexpected"),
        ("1.real", "syntax", "unexpected"),
        ("1j", "syntax", "unexpected"),
        ("pi.real", "unsupported", "attribute access is not arithmetic"),
        ("1 if 2 else 3", "unsupported", "'if … else' is not arithmetic"),
        ("1 or 2", "unsupported", "is not arithmetic"),
        ("not 1", "unsupported", "'not' is not arithmetic"),
        ("1, 2", "unsupported", "a list of values is not arithmetic"),
        ("max(*(1, 2))", "unsupported", r"'\*' before an argument"),
        ("True", "unsupported", "True is not a number"),
        ("(1)(2)", "unsupported", r"a product is written with \*"),
        ("x + 1", "unknown_name", "known constants: e, pi, tau"),
        ("sqrt", "syntax", "is a function"),
        ("pi(2)", "unknown_name", "pi is a constant"),
        ("__import__(1)", "unknown_name", "known functions: abs"),
        ("sqrt()", "bad_arguments", r"sqrt\(\) takes 1 argument"),
        ("log(1, 2, 3)", "bad_arguments", r"log\(\) takes 1 or 2 arguments"),
        ("min()", "bad_arguments", r"min\(\) takes at least 1 argument"),
        ("1 / 0", "division_by_zero", "division by zero"),
        ("1 // 0.0", "division_by_zero", "division by zero"),
        ("0 ** -1", "division_by_zero", "division by zero"),
        ("log(2, 1)", "division_by_zero", "division by zero"),
        ("sqrt(-1)", "domain", r"sqrt\(-1\) is not defined"),
        ("log(0)", "domain", r"log\(0\) is not defined"),
        ("factorial(-1)", "domain", "is not defined"),
        ("factorial(1.5)", "domain", "takes an integer"),
        ("gcd(1.5, 2)", "domain", "takes integers"),
        ("round(1.5, 0.5)", "domain", "takes an integer"),
        ("(-8) ** 0.5", "domain", "no real power"),
        ("exp(1000)", "overflow", "too large for a floating-point number"),
        ("10.0 ** 400", "overflow", "too large for a floating-point number"),
        ("10 ** 400 * 1.0", "overflow", "too large for a floating-point number"),
        ("1e400", "not_finite", "not a finite number"),
        ("1e308 * 10", "not_finite", "not a finite number"),
        ("9 ** 9 ** 9", "too_large", "digits is too large"),
        ("10 ** 4000", "too_large", "digits is too large"),
        ("factorial(10 ** 30)", "too_large", "digits is too large"),
        ("factorial(3000)", "too_large", "digits is too large"),
        ("round(5, -10 ** 9)", "too_large", "round"),
        ("1" * (MAX_LENGTH + 1), "too_long", f"at most {MAX_LENGTH}"),
        ("(" * 300 + "1" + ")" * 300, "syntax", "nested|read"),
        ("-" * (MAX_DEPTH + 1) + "1", "too_deep", "nested"),
        ("+".join(["1"] * 260), "too_long", "more than 500 parts"),
        ("1 @ 2", "syntax", "unexpected '@'"),
        ("a\0b", "syntax", "unexpected"),
        ("٣ + ١", "syntax", "can't be read"),
    ],
)
def test_what_has_no_value_fails_with_a_code(expression, code, message):
    """Every failure is a ToolError that says what is wrong, as the caller's to mend."""
    with pytest.raises(ToolError, match=message) as failure:
        evaluate(expression)
    assert (failure.value.error.type, failure.value.error.code) == ("invalid_arguments", code)
    assert len(str(failure.value)) < 300


def test_the_largest_integers_are_exact():
    """An integer of the most digits allowed comes back to the last digit."""
    assert evaluate(f"10 ** {MAX_DIGITS - 1} + 7") == 10 ** (MAX_DIGITS - 1) + 7
    assert len(calculator(f"9 * 10 ** {MAX_DIGITS - 1}").output) == MAX_DIGITS


def test_a_long_sum_is_not_deep():
    """Columns of figures are added up however many there are, within the length allowed."""
    assert evaluate("+".join(["1"] * 240)) == 240
    assert evaluate("-".join(["1"] * 240)) == -238


@pytest.mark.parametrize("value", range(1200, 1300, 7))
def test_factorials_are_refused_by_their_digits(value):
    """A factorial is computed exactly when it has no more digits than allowed."""
    fits = math.factorial(value) < 10**MAX_DIGITS
    try:
        assert evaluate(f"factorial({value})") == math.factorial(value)
        assert fits
    except ToolError:
        assert not fits


def numbers():
    whole = st.integers(0, 10**12).map(str)
    fraction = st.floats(0, 1e12, allow_nan=False).map(repr)
    return st.one_of(whole, fraction, st.sampled_from(["pi", "e", "tau"]))


def compound(inner):
    functions = ["sqrt", "sin", "cos", "tan", "log", "log10", "exp", "abs", "round", "floor", "ceil"]
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(" ".join),
        st.tuples(inner, st.integers(-5, 5)).map(lambda pair: f"({pair[0]}) ** {pair[1]}"),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
        st.tuples(st.sampled_from(functions), inner).map(lambda pair: f"{pair[0]}({pair[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"),
    )


PYTHON = {name: getattr(math, name) for name in ["sqrt", "sin", "cos", "tan", "log", "log10", "exp", "floor", "ceil", "pi", "e", "tau"]}


@pytest.mark.usefixtures("slow")
@settings(deadline=None)
@given(st.recursive(numbers(), compound, max_leaves=12))
def test_generated_expressions_agree_with_python(expression):
    """The calculator computes the same value as Python to the last bit, and fails where Python fails."""
    if len(expression) > MAX_LENGTH:
        return
    try:
        expected = eval(expression, {**PYTHON, "abs": abs, "round": round, "min": min, "max": max})
    except (ArithmeticError, ValueError):
        expected = None
    if expected is None or isinstance(expected, complex) or not math.isfinite(expected):
        with pytest.raises(ToolError):
            evaluate(expression)
        return
    try:
        result = evaluate(expression)
    except ToolError as failure:
        # An inner value may be infinite or complex, or too long, where the whole is not.
        assert failure.error.code in {"not_finite", "domain", "too_large"}  # noqa: PT017
        return
    assert result == expected
    assert type(result) is type(expected)


WORDS = "9 99 9** ** * ( ) - ~ factorial( gcd( round( max( , . e 1e308 lambda [ 0x := = \\ ' # _ 1_ << @ ١ ﬁ".split()  # noqa: SIM905 - a list would be forty lines
SPACED = ["not ", " or ", "if ", " else ", "for ", "in ", "await ", "yield ", "is ", '"', "\n", "\0", "\ud800"]
PIECES = st.sampled_from([*WORDS, *SPACED])


@settings(max_examples=examples(300), deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=120).map("".join)))
@example("9**9**9**9**9")
@example("factorial(" * 20 + "9" + ")" * 20)
@example("(" * 900)
@example("-" * 999 + "1")
@example("round(9,-9**9)")
@example("gcd(" + ",".join(f"{n}**1100" for n in range(1001, 1090)) + ")")
@example("*".join(["9**3000//9**2999"] * 55))
def test_hostile_strings_only_fail_with_a_tool_error_and_soon(expression):
    """For any string the answer is a number or a ToolError, and it comes at once."""
    started = time.thread_time()
    try:
        value = evaluate(expression)
        assert abs(value) < 10**MAX_DIGITS if isinstance(value, int) else math.isfinite(value)
    except ToolError as failure:
        assert len(str(failure)) < 300  # noqa: PT017
    assert time.thread_time() - started < 1.0


@pytest.mark.anyio
async def test_the_service_behind_it_is_replaceable():
    """A worker that is given another CalculatorService computes with it; models never see the parameter."""

    class Roman(CalculatorService):
        def evaluate(self, expression):
            return 2 if expression == "I + I" else super().evaluate(expression)

    for sources, expected in (({}, None), ({CalculatorService: Roman()}, {"result": 2})):
        async with Worker(calculator, url="memory://", provide=sources), ToolBus("memory://") as bus:
            assert list(bus.tools["calculator"].parameters["properties"]) == ["expression"]
            assert (await bus.call("calculator", {"expression": "I + I"})).data == expected
            assert (await bus.call("calculator", {"expression": "2 * 3"})).data == {"result": 6}
