"""A calculator that evaluates an expression by walking its syntax tree.

Nothing is ever passed to ``eval``: syntax that is not arithmetic is refused by name. Every
operation is bounded before it runs, so no expression is expensive.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping

from toolbus import ToolError, ToolResult, tool

Number = int | float

MAX_LENGTH = 1_000
MAX_NODES = 500
MAX_DEPTH = 60
# Python refuses to read or print integers of more than 4,300 digits, and most JSON libraries do, too.
MAX_DIGITS = 4_000

_MAX_INT = 10**MAX_DIGITS
_MAX_BITS = _MAX_INT.bit_length()

# Signs that people and models write for operators.
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_STRAY = re.compile(r"[^\w\s.+\-*/%(),]")
# Python still accepts `1or 2` with a warning; here a name must not follow a number directly.
_GLUED = re.compile(r"(?<![\w.])((?:\d[\d_]*+\.?[\d_]*+|\.\d[\d_]*+)(?:[eE][+-]?\d++)?+)([^\W\d]\w*)")


def evaluate(expression: str) -> Number:
    """Return the value of an arithmetic expression.

    Raises:
        ToolError: the expression can't be read, contains an unknown name, has no value, or is too large.
    """
    return _Evaluator().value(_parse(expression))


def render(value: Number) -> str:
    """Return a number as text; ``2`` stays ``2`` and ``2.0`` stays ``2.0``."""
    return repr(value)


class CalculatorService:
    """Computes expressions; ``provide(CalculatorService, yours)`` puts another one in its place."""

    def evaluate(self, expression: str) -> Number:
        """Return the value of an arithmetic expression.

        Raises:
            ToolError: see ``evaluate``.
        """
        return evaluate(expression)


@tool(category="data", effect="read", timeout=10.0)
def calculator(expression: str, service: CalculatorService | None = None) -> ToolResult:
    """Evaluate an arithmetic expression exactly, e.g. "2 * (3 + 4) ** 2" or "sqrt(2) * sin(pi / 4)".

    Operators: + - * / // (floor division) % (remainder) ** (power) and parentheses.
    Functions: sqrt, sin, cos, tan (radians), log (natural, or log(x, base)), log10, exp,
    abs, round, floor, ceil, min, max, factorial, gcd. Constants: pi, e, tau.

    Args:
        expression: the expression to evaluate
    """
    value = (service or _SERVICE).evaluate(expression)
    return ToolResult.ok({"result": value}, output=render(value))


_SERVICE = CalculatorService()


def _fail(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)


def _parse(expression: str) -> ast.expr:
    source = " ".join(expression[: MAX_LENGTH + 1].translate(_SIGNS).split())
    if not source:
        raise _fail("the expression is empty", "empty")
    if len(expression) > MAX_LENGTH:
        raise _fail(f"the expression has {len(expression)} characters; at most {MAX_LENGTH} are allowed", "too_long")
    if stray := _STRAY.search(source):
        hint = "; a power is written **" if stray[0] == "^" else ""
        raise _fail(f"unexpected {stray[0]!r} at position {stray.start() + 1}{hint}", "syntax")
    if glued := _GLUED.search(source):
        raise _fail(f"unexpected {glued[2][:40]!r} after {glued[1][:40]}; a product is written {glued[1][:40]}*{glued[2][:40]}", "syntax")
    try:
        body = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        # The parser reports position 0 for the end of the expression.
        where = f"at position {error.offset}: {error.msg}" if error.offset else "to its end: something is missing"
        raise _fail(f"the expression can't be read {where}", "syntax") from None
    # The parser raises these two for nesting beyond its own stack, and a ValueError for odd characters.
    except (MemoryError, RecursionError):
        raise _fail("the expression is nested too deeply", "too_deep") from None
    except ValueError as error:
        raise _fail(f"the expression can't be read: {error}", "syntax") from None
    if sum(isinstance(node, ast.expr) for node in ast.walk(body)) > MAX_NODES:
        raise _fail(f"the expression has more than {MAX_NODES} parts", "too_long")
    return body


class _Evaluator:
    """Evaluates nodes within a limit on nesting; a long sum counts as one level."""

    def __init__(self) -> None:
        self._depth = 0

    def value(self, node: ast.expr) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _fail(f"the expression is nested more than {MAX_DEPTH} levels deep", "too_deep")
        match node:
            case ast.Constant():
                value = _constant(node.value)
            case ast.Name():
                value = _named(node.id)
            case ast.UnaryOp():
                value = self._unary(node)
            case ast.BinOp():
                value = self._binary(node)
            case ast.Call():
                value = self._call(node)
            case _:
                raise _fail(f"{_describe(node)} is not arithmetic", "unsupported")
        self._depth -= 1
        return value

    def _unary(self, node: ast.UnaryOp) -> Number:
        if isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node.op, ast.UAdd):
            return self.value(node.operand)
        raise _fail(f"{_describe(node.op)} is not arithmetic", "unsupported")

    def _binary(self, node: ast.BinOp) -> Number:
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        value = self.value(chain[-1].left)
        for link in reversed(chain):
            operation = _OPERATORS.get(type(link.op))
            if operation is None:
                raise _fail(f"the operator {_describe(link.op)} is not supported", "unsupported")
            value = _guarded(operation, value, self.value(link.right))
        return value

    def _call(self, node: ast.Call) -> Number:
        if not isinstance(node.func, ast.Name):
            raise _fail("only functions can be called; a product is written with *", "unsupported")
        name = node.func.id
        if name not in _FUNCTIONS:
            hint = f"; {name} is a constant, a product is written with *" if name in _CONSTANTS else ""
            raise _fail(f"unknown function {name[:40]!r}{hint}; known functions: {', '.join(sorted(_FUNCTIONS))}", "unknown_name")
        function, least, most = _FUNCTIONS[name]
        if node.keywords or not least <= len(node.args) <= most:
            count = str(least) if least == most else f"{least} or {most}" if most < MAX_NODES else f"at least {least}"
            raise _fail(f"{name}() takes {count} argument{'s' if count[-1] != '1' else ''}, without names", "bad_arguments")
        return _guarded(function, *map(self.value, node.args), name=f"{name}()")


def _constant(value: object) -> Number:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _fail(f"{str(value)[:40]} is not a number", "unsupported")
    return _checked(value)


def _named(name: str) -> Number:
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name in _FUNCTIONS:
        raise _fail(f"{name} is a function; call it as {name}(…)", "syntax")
    raise _fail(f"unknown name {name[:40]!r}; known constants: {', '.join(sorted(_CONSTANTS))}", "unknown_name")


def _describe(node: ast.AST) -> str:
    return _WORDS.get(type(node), type(node).__name__.lower())


def _guarded(function: Callable[..., Number], *values: Number, name: str = "the result") -> Number:
    try:
        return _checked(function(*values))
    except ZeroDivisionError:
        raise _fail("division by zero", "division_by_zero") from None
    except OverflowError:
        raise _fail(f"{name} is too large for a floating-point number", "overflow") from None
    except ValueError:
        shown = ", ".join(_short(value) for value in values)
        raise _fail(f"{name.removesuffix('()')}({shown}) is not defined", "domain") from None


def _checked(value: object) -> Number:
    # In Python a negative number to a fractional power is complex.
    if isinstance(value, complex):
        raise _fail("a negative number has no real power with a fractional exponent", "domain")
    if isinstance(value, int):
        if abs(value) >= _MAX_INT:
            raise _too_large()
        return value
    if not isinstance(value, float) or not math.isfinite(value):
        raise _fail("the result is not a finite number", "not_finite")
    return value


def _too_large() -> ToolError:
    return _fail(f"an integer of more than {MAX_DIGITS} digits is too large", "too_large")


def _short(value: Number) -> str:
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:20]}…"


def _power(base: Number, exponent: Number) -> Number:
    # The result has at least (bits - 1) * exponent bits and at most about twice as many, so a small product means a cheap power.
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0 and (abs(base).bit_length() - 1) * exponent > _MAX_BITS:
        raise _too_large()
    result: Number = base**exponent
    return result


def _factorial(value: Number) -> int:
    if not isinstance(value, int):
        raise _fail("factorial() takes an integer", "domain")
    # n! has more digits than n from 25 on, and lgamma is exact enough for small numbers.
    if value > MAX_DIGITS or (value > 1 and math.lgamma(value + 1) > (MAX_DIGITS + 1) * math.log(10)):
        raise _too_large()
    return math.factorial(value)


def _gcd(*values: Number) -> int:
    whole = [value for value in values if isinstance(value, int)]
    if len(whole) < len(values):
        raise _fail("gcd() takes integers", "domain")
    return math.gcd(*whole)


def _round(value: Number, digits: Number | None = None) -> Number:
    if digits is None:
        return round(value)
    if not isinstance(digits, int):
        raise _fail("round() takes an integer as its number of digits", "domain")
    # Rounding an integer to -n digits computes 10**n.
    if abs(digits) > MAX_DIGITS:
        raise _fail(f"round() takes at most {MAX_DIGITS} digits", "too_large")
    return round(value, digits)


def _log(value: Number, base: Number | None = None) -> float:
    return math.log(value) if base is None else math.log(value, base)


def _min(*values: Number) -> Number:
    return min(values)


def _max(*values: Number) -> Number:
    return max(values)


_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}

_OPERATORS: Mapping[type[ast.operator], Callable[..., Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}

# Each function with the least and the most arguments it takes.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Number], int, int]] = {
    "sqrt": (math.sqrt, 1, 1),
    "sin": (math.sin, 1, 1),
    "cos": (math.cos, 1, 1),
    "tan": (math.tan, 1, 1),
    "log": (_log, 1, 2),
    "log10": (math.log10, 1, 1),
    "exp": (math.exp, 1, 1),
    "abs": (abs, 1, 1),
    "round": (_round, 1, 2),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "min": (_min, 1, MAX_NODES),
    "max": (_max, 1, MAX_NODES),
    "factorial": (_factorial, 1, 1),
    "gcd": (_gcd, 1, MAX_NODES),
}

_WORDS: Mapping[type[ast.AST], str] = {
    ast.Attribute: "attribute access",
    ast.BoolOp: "'and' / 'or'",
    ast.IfExp: "'if … else'",
    ast.Compare: "a comparison",
    ast.Not: "'not'",
    ast.Starred: "'*' before an argument",
    ast.Tuple: "a list of values",
    ast.GeneratorExp: "a loop",
    ast.Await: "'await'",
    ast.Yield: "'yield'",
    ast.MatMult: "'@'",
}
