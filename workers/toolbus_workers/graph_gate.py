"""Check that a text is one statement of Cypher that only reads, and that the parser can take it."""

from __future__ import annotations

import re

from toolbus_workers.confined import Refused, cut

# The parser takes many seconds for thousands of levels, and can't be interrupted.
MAX_NESTING = 50
# Nested CASEs take ever longer to parse: 0.5 s for 10 levels, minutes for 40.
MAX_CASE_NESTING = 10
MAX_CASES = 200
# What is chained is nested for the parser: some thousand operators in a row end the process.
MAX_OPERATORS = 500
# The time for planning grows with the square of the clauses, or faster, and can't be interrupted.
MAX_CLAUSES = 100
# Joins are planned for each edge of a pattern: 2 s for 20, 10 s and 650 MiB for 50, which can't be interrupted.
MAX_HOPS = 20

_OPERATORS = frozenset("+-*/%^&|<>=!~.:")
# What joins or separates expressions, so that each begins a chain of its own.
_SEPARATORS = frozenset({"AND", "OR", "XOR", "WHEN", "THEN", "ELSE", "AS"})
_CLAUSES = frozenset({"MATCH", "UNWIND", "WITH", "WHERE", "RETURN", "UNION"})
_STARTS = frozenset({"MATCH", "OPTIONAL", "UNWIND", "WITH", "RETURN"})
_CHANGING = frozenset(
    {"CREATE", "MERGE", "SET", "DELETE", "DETACH", "REMOVE", "DROP", "ALTER", "COPY", "LOAD", "CALL", "ATTACH", "INSTALL"}
)
ALLOWED = "allowed is one reading statement of MATCH, OPTIONAL MATCH, UNWIND, WITH, WHERE, RETURN, UNION"
# Quoted text and names, comments, words with the character before them, and any other character.
_TOKEN = re.compile(
    r"""(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<comment>//|/\*)|(?P<open>['"`])"""
    r"""|(?P<property>(?<=[\w`)\]])\.\w+)|(?P<word>[^\W\d]\w*)|(?P<end>;)|(?P<other>\w+|\s+|.)""",
    re.DOTALL,
)


def check(query: str) -> None:
    """Check that a text is one statement, which only reads.

    Raises:
        Refused: it is something else; the message names it.
    """
    words: list[str] = []
    ended = False
    level = cases = 0
    chains, hops = _Chains(), _Hops()
    for token in _TOKEN.finditer(query):
        kind, text = token.lastgroup, token[0]
        if kind == "comment":
            raise Refused("leave comments out of the statement", "no_comments")
        if kind == "open":
            raise Refused(f"a quotation that begins with {text} does not end", "bad_query")
        level = max(0, level + (text in "([{") - (text in ")]}"))
        if level > MAX_NESTING:
            raise Refused(f"brackets are nested more than {MAX_NESTING} levels deep; write it flatter", "too_deep")
        if ended and not text.isspace() and kind != "end":
            raise Refused("several statements were given; run one at a time", "one_statement")
        ended = ended or kind == "end"
        chains.take(text.upper() if kind == "word" else "." if kind == "property" else text)
        hops.take(text)
        if kind == "word":
            words.append(text.upper())
            # Both words are reserved, so they have no other meaning.
            cases = max(0, cases + (words[-1] == "CASE") - (words[-1] == "END"))
            if cases > MAX_CASE_NESTING:
                raise Refused(f"CASEs are nested more than {MAX_CASE_NESTING} levels deep; write it flatter", "too_deep")
    if sum(word in _CLAUSES for word in words) > MAX_CLAUSES:
        raise Refused(f"the statement has more than {MAX_CLAUSES} clauses; write it shorter", "too_deep")
    if words.count("CASE") > MAX_CASES:
        raise Refused(f"the statement has {words.count('CASE')} CASEs; at most {MAX_CASES} are allowed", "too_deep")
    first = words[0] if words else ""
    refused = first if first not in _STARTS else next((word for word in words if word in _CHANGING), "")
    if refused or not words:
        what = f"{cut(refused, 40)} is not allowed here" if words else "the statement is empty"
        hint = "; data comes in by graph_import, and graph_schema shows what there is (quote a name like this with backticks)"
        raise Refused(f"{what}; {ALLOWED}{hint}", "statement_refused", "forbidden")


class _Chains:
    """Counts the operators that are nested for the parser: those in a row, and those around the brackets or the CASE that they stand in."""

    def __init__(self) -> None:
        self._rows = [0]
        self._all = 0
        self._last = ""

    def take(self, token: str) -> None:
        """Take the next token.

        Raises:
            Refused: too many are nested by now.
        """
        # An index of what is indexed already is an operator: the time for thousands of them grows with the square.
        indexes = token == "[" and self._last == "]"  # noqa: S105 - a bracket
        self._last = self._last if token.isspace() else token
        if indexes or token in _OPERATORS or token == "NOT":  # noqa: S105 - a word of Cypher
            self._rows[-1] += 1
            self._all += 1
            if self._all > MAX_OPERATORS:
                raise Refused(f"more than {MAX_OPERATORS} operators stand in a row; write it flatter", "too_deep")
        if token in {"(", "[", "{", "CASE"}:
            self._rows.append(0)
        elif token in {")", "]", "}", "END"} and len(self._rows) > 1:
            self._all -= self._rows.pop()
        elif token == "," or token in _SEPARATORS or token in _CLAUSES:  # noqa: S105 - as above
            self._all -= self._rows[-1]
            self._rows[-1] = 0


class _Hops:
    """Counts the edges in the patterns of a statement: what follows a vertex as ``-[``, ``--``, ``<-[`` or ``<--``."""

    def __init__(self) -> None:
        self._last = ""
        self._count = 0

    def take(self, token: str) -> None:
        """Take the next token.

        Raises:
            Refused: there are too many by now.
        """
        if token.isspace():
            return
        if token in {"[", "-"} and self._last.endswith((")-", ")<-")):
            self._count += 1
            if self._count > MAX_HOPS:
                advice = "ask in several statements, or write repeated edges as one, e.g. -[:KNOWS*1..5]->"
                raise Refused(f"the patterns have more than {MAX_HOPS} edges in all; {advice}", "too_many_edges")
        self._last = (self._last + token[-1])[-3:]
