"""Timeouts by signals, under whatever names they are used."""

import ast

import pytest

from openrlhf_sagc.config.plug_in_source import names, timeouts_by_signals

FOUND = {
    "import signal\ndef f():\n    signal.alarm(5)": (3, "signal.alarm"),
    "import signal as s\ns.setitimer(s.ITIMER_REAL, 5)": (2, "signal.setitimer"),
    "from signal import alarm as wake\nwake(5)": (2, "signal.alarm"),
    "from signal import *\nalarm(5)": (2, "signal.alarm"),
    "import signal\nhandle = signal.signal\nhandle(signal.SIGALRM, print)": (2, "signal.signal"),
    "def f():\n    import signal\n    signal.signal(signal.SIGALRM, print)": (3, "signal.signal"),
    "from math_verify import parse\nparse('1')": (2, "math_verify's parse without parsing_timeout=None"),
    "from math_verify import verify as check\ncheck(1, 2, timeout_seconds=5)": (
        2,
        "math_verify's verify without timeout_seconds=None",
    ),
    "import math_verify as mv\nmv.verify(mv.parse('1', parsing_timeout=None), 2)": (
        2,
        "math_verify's verify without timeout_seconds=None",
    ),
    "from math_verify.parser import parse\nparse('1')": (2, "math_verify's parse without parsing_timeout=None"),
    "from math_verify import *\nparse('1')": (2, "math_verify's parse without parsing_timeout=None"),
    "from math_verify.metric import math_metric\nx = math_metric()": (
        2,
        "math_verify's math_metric (use parse and verify)",
    ),
    "import timeout_decorator\n@timeout_decorator.timeout(5)\ndef f(): ...": (2, "timeout_decorator"),
    "from timeout_decorator import timeout\n@timeout(5)\ndef f(): ...": (2, "timeout_decorator"),
}
FINE = [
    "import signal\nprint(signal.SIGTERM)",
    "import math_verify as mv\nmv.verify(mv.parse('1', parsing_timeout=None), 2, timeout_seconds=None)",
    "from math_verify import parse\nparse('1', parsing_timeout=0)\nparse('1', **options)\nparse('1', parsing_timeout=LIMIT)",
    "def alarm(x): ...\nalarm(5)",
    "from json import loads as parse\nparse('1')",
    "from .signal import alarm\nalarm(5)",
    "import timeout_decorator\n@timeout_decorator.timeout(5, use_signals=False)\ndef f(): ...",
    "class Clock:\n    def alarm(self): ...\nClock().alarm()",
]


@pytest.mark.parametrize("source", FOUND, ids=range(len(FOUND)))
def test_timeouts_by_signals_are_found(source):
    assert FOUND[source] in timeouts_by_signals(ast.parse(source))


@pytest.mark.parametrize("source", FINE, ids=range(len(FINE)))
def test_others_are_not(source):
    assert not list(timeouts_by_signals(ast.parse(source)))


def test_the_projects_own_rewards_have_none():
    from cpu_stack import ROOT

    files = [ROOT / "openrlhf_sagc/math_reward.py", *ROOT.glob("train_scripts/**/*reward.py")]
    assert len(files) > 2
    for file in files:
        assert not list(timeouts_by_signals(ast.parse(file.read_text())))


def test_names_are_those_for_others():
    assert names(ast.parse("def f(): ...\nasync def g(): ...\nclass H: ...\ndef _i(): ...\nj = 1")) == ["f", "g", "H"]
