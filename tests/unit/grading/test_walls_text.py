"""The first wall without the second: in an ordinary process, no text that a comparison reads becomes code."""

import json
import subprocess
import sys
from itertools import cycle

import pytest
from payloads import GOLDS, PLACES, SERIES, code_that_marks, payload
from sympy import Function, MatrixSymbol, Symbol

from openrlhf_sagc.grading.walls import check_names

COMPARE = {
    "nothing": "",
    "names": "from openrlhf_sagc.grading.comparison import equal",
    "disarm": "from openrlhf_sagc.grading.walls import disarm; disarm()",
    "disarm, our reader": """
from openrlhf_sagc.grading import comparison, walls
comparison.check_names = lambda expression: None
equal = comparison.equal
equal("x+1", "1+x"), equal("x^2", "x*x"), equal("[1,x+1]", "[1,1+x]")
walls.disarm()""",
}
PROGRAM = r"""
import json, logging, sys
from math_verify import parse, verify
logging.disable()
def equal(gold, answer):
    gold, answer = (parse(rf"\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer))
    return verify(gold, answer, allow_set_relation_comp=True, timeout_seconds=None)
equal("1", "2"), equal("x+1", "1+x")
WALL
for pair in json.load(sys.stdin):
    try:
        print(equal(*pair))
    except Exception as error:
        print(repr(error)[:60])
"""


def compared(wall, pairs):
    program = PROGRAM.replace("WALL", COMPARE[wall])
    run = subprocess.run([sys.executable, "-c", program], input=json.dumps(pairs), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def pairs_with(code):
    """Every place, with the accents, series and golds in turn."""
    turns = zip(PLACES, cycle([("dot",), ("vec", "dot")]), cycle(SERIES), cycle(GOLDS))
    return [(gold, payload(code, accents, series, place)) for place, accents, series, gold in turns]


def test_the_payload_runs_where_there_is_no_wall(tmp_path):
    """Else the tests below would show nothing."""
    compared("nothing", [("34", payload(code_that_marks(tmp_path / "marker")))])
    if not (tmp_path / "marker").exists():
        pytest.skip("this math-verify, latex2sympy2 or sympy no longer runs it")


@pytest.mark.parametrize("wall", ["names", "disarm", "disarm, our reader"])
def test_no_text_becomes_code(wall, tmp_path):
    pairs = pairs_with(code_that_marks(tmp_path / "marker"))
    verdicts = compared(wall, [*pairs, *(pair[::-1] for pair in pairs[::4])])
    assert not (tmp_path / "marker").exists() and "True" not in verdicts


def test_disarmed_numbers_are_the_same():
    pairs = [("0.5", r"\frac{1}{2}"), ("007", "7"), (".25", r"\frac14"), ("1,000", "1000"), ("2", "3")]
    assert compared("disarm", pairs) == ["True"] * 4 + ["False"] == compared("nothing", pairs)


@pytest.mark.parametrize("other", [*'dot{(f)}|a.b|a b|a[0]|f(x)|a;b|a=1|a:b|"a"|a\nb'.split("|"), "x" * 101])
def test_names_are_names(other):
    for name in r"x|α|\alpha|x_{1,2}|x_1|vec{a}|dot{vec{x}}|x'|theta".split("|"):
        check_names([Symbol(name) + 1, Function(name)(2), MatrixSymbol(name, 2, 2), (Symbol(name),)])
    for part in (2 * Symbol(other), [1 + Symbol(other)], Function(other)(2), MatrixSymbol(other, 2, 2), Symbol("")):
        with pytest.raises(ValueError, match="is no name"):
            check_names(part)
