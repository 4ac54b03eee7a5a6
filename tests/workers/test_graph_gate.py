"""The graph store's gate: what it lets pass, and that past it nothing is reached or changed."""

import subprocess
import sys

import pytest
from toolbus_workers.confined import Refused
from toolbus_workers.graph_gate import MAX_HOPS, check

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("", "statement_refused"),
        ("RETURN 1; DROP TABLE Person", "one_statement"),
        ("RETURN 1 // a comment", "no_comments"),
        ("RETURN /* '*/ 1", "no_comments"),
        ("RETURN 'a", "bad_query"),
        (f"RETURN {'(' * 9_000}1{')' * 9_000}", "too_deep"),
        (f"RETURN {'[{a:' * 50}1{'}]' * 50}", "too_deep"),
        (f"RETURN {'CASE WHEN true THEN ' * 40}1{' END' * 40}", "too_deep"),
        (f"RETURN {'case when true then (' * 11}1{') end' * 11}", "too_deep"),
        (f"RETURN {'CASE WHEN true THEN 1 END + ' * 201}1", "too_deep"),
        (f"RETURN [1]{'[1]' * 501}", "too_deep"),
        (f"RETURN [1]{' [1:1]' * 501}", "too_deep"),
        ("RETURN \"it's", "bad_query"),
        ("RETURN 'a\\' LOAD FROM 'x' RETURN 1", "bad_query"),
    ],
)
def test_the_gate_refuses_what_it_can_not_read(statement, code):
    """Several statements, comments, open quotations and deep nesting are refused before the database sees them."""
    with pytest.raises(Refused) as refused:
        check(statement)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "statement",
    [
        "RETURN 'LOAD FROM; //'",
        "MATCH (n:`CREATE`) RETURN n.set, n.load;",
        'OPTIONAL MATCH (n) WHERE n.a =~ "it\'s" RETURN n UNION RETURN 1',
        f"RETURN {'CASE WHEN true THEN ' * 10}1{' END' * 10}",
        f"RETURN {'CASE WHEN true THEN 1 END + ' * 100}1",
        f"RETURN [1]{'[1]' * 400}, [1]{'[1]' * 400}",
        f"RETURN {', '.join(['[[1], [2]]'] * 600)}",
        f"RETURN n{'.case' * 50}, {'`CASE` ' * 50}, '{'CASE ' * 50}'",
    ],
)
def test_the_gate_lets_words_stand_where_they_are_names(statement):
    """Quoted text, quoted names and properties may be called like anything."""
    check(statement)


STATEMENTS = [
    "LOAD FROM '{}/in.csv' RETURN *",
    "COPY (MATCH (n) RETURN n.id) TO '{}/out.csv'",
    "CREATE (:Person {{id: 'x'}})",
    "MATCH (n) SET n.age = 1",
    "INSTALL json",
    "CREATE NODE TABLE Other(id STRING, PRIMARY KEY (id))",
]


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "file"])
def test_past_the_gate_nothing_is_reached_or_changed(tmp_path, stored):
    """Without the gate a statement would still open no file and no socket and change nothing: the system and the transaction refuse."""
    (tmp_path / "in.csv").write_text("a\n1\n")
    program = (
        "import sys, toolbus_workers.graph_engine as engine\n"
        "engine.check = lambda query: None\n"
        "made = engine.Engine(sys.argv[1], 64 << 20, 64 << 20)\n"
        "made.load('Person', [{'id': 'ann', 'age': 1}], '', '')\n"
        "for statement in sys.argv[2:]:\n"
        "    for query in (statement, 'MATCH (n) RETURN n.id, n.age'):\n"
        "        print(engine._answer(made, {'do': 'query', 'query': query, 'parameters': {}, 'max_rows': 9, 'max_bytes': 999}))\n"
    )
    path = str(tmp_path / "a.graph") if stored else ""
    command = [sys.executable, "-c", program, path, *(each.format(tmp_path) for each in STATEMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    answers = done.stdout.splitlines()
    assert len(answers) == 2 * len(STATEMENTS), done.stderr
    for statement, refused, after in zip(STATEMENTS, answers[::2], answers[1::2], strict=True):
        assert "'code': 'no_access'" in refused, statement
        assert "[['ann', 1]]" in after, statement
    assert not (tmp_path / "out.csv").exists()


EDGES = ["-[:KNOWS]->", "<-[k:KNOWS]-", "-[:KNOWS*1..3]->", "-->", "<--", "--", " - [ :KNOWS ] - ", "<-[]->"]


@pytest.mark.parametrize("edge", EDGES)
def test_a_statement_has_a_bounded_number_of_edges(edge: str) -> None:
    """Joins are planned for each, wherever it stands, and planning can't be interrupted."""
    forms = (
        lambda count: "MATCH (a)" + f"{edge}(b)" * count + " RETURN a",
        lambda count: "MATCH " + ", ".join(f"(a{number}){edge}(b)" for number in range(count)) + " RETURN 1",
        lambda count: f"MATCH (a){edge}(b) " * count + "RETURN a",
        lambda count: "MATCH (a) WHERE EXISTS { MATCH (a)" + f"{edge}(b)" * count + " } RETURN a",
    )
    for made in forms:
        check(made(MAX_HOPS))
        with pytest.raises(Refused, match=f"more than {MAX_HOPS} edges") as told:
            check(made(MAX_HOPS + 1))
        assert "KNOWS*1..5" in str(told.value)


def test_arithmetic_is_no_edge() -> None:
    """Neither are lists after a minus, unless they stand behind a bracket."""
    check("RETURN " + ", ".join(f"{number} - 1 AS x{number}" for number in range(100)))
    check("MATCH (n) WHERE " + " AND ".join("(n.a) - 1 > 0" for _ in range(100)) + " RETURN n")
