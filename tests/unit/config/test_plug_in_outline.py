"""What is known of a file without running it."""

import ast

import pytest

from openrlhf_sagc.config.plug_in_outline import Unknown, outline

FUNCTION = "def reward_func(queries, prompts, labels): ..."


def made(source):
    return outline(ast.parse(source), "plug_in.py")


@pytest.mark.parametrize(
    "source",
    [
        f"import functools\n@functools.cache\n{FUNCTION}",
        "reward_func = make()",
        "class R:\n    def __call__(self, q, p, l): ...\nreward_func = R()",
        "from beside import reward_func",
        f"if x:\n    {FUNCTION}",
        f"try:\n    from a import reward_func\nexcept ImportError:\n    {FUNCTION}",
        "from a.b import c\nreward_func = c.score",
        "def load():\n    global reward_func\n    reward_func = None\nload()",
        f"{FUNCTION}\nreward_func = wrapped(reward_func)",
        "with open('x') as reward_func: ...",
        "class reward_func(make()): ...",
        "import abc\nclass reward_func(metaclass=abc.ABCMeta): ...",
        "class reward_func:\n    @cached\n    def __call__(self, q, p, l): ...",
        "import ctypes\nclass reward_func(ctypes.Union):\n    _fields_ = []\n    __call__ = make()",
    ],
)
def test_what_comes_of_running_code_is_not_known(source, tmp_path, monkeypatch):
    for name in ("a", "beside"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert isinstance(made(source)[0].reward_func, Unknown)


def test_functions_and_classes_are_made_without_their_values():
    module, has_more = made(
        "import os\nfrom abc import ABC\nN = 3\nname = os.sep\n"
        "def f(a: x.y, b=x(), *, c=x(), d) -> x: return 1\nalias = f\nshort = lambda q: 0\n"
        "class A(ABC):\n    x: int = x()\n    def step(self): ...\n    @x\n    def other(self): ...\n"
    )
    assert module.N == 3 and module.alias(1, d=2) == 1 and module.A().step() is None and not has_more
    assert module.name == "/" and module.short(1) == 0 and not hasattr(module.A, "other")


@pytest.mark.parametrize("source", ["globals()['reward_func'] = 1", "from a import *", "def __getattr__(name): ..."])
def test_a_file_may_have_more_names(source, tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("reward_func = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert made(source)[1] and not hasattr(made(source)[0], "reward_func")


@pytest.mark.parametrize(
    "source, error",
    [
        ("import no_such_module", ModuleNotFoundError),
        ("import logging\nlogger = logging.getLogger()\nimport no_such_module", ModuleNotFoundError),
        ("from . import beside", ImportError),
        ("from json import nothing", ImportError),
        ("import os\nKEY = os.environ['NO_SUCH_KEY']", KeyError),
    ],
)
def test_errors_that_an_engine_would_meet_too(source, error):
    with pytest.raises(error):
        made(source)


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.path.append(here())\nimport no_such_module",
        "import subprocess\nsubprocess.run('pip install x')\nimport no_such_module",
        "load_dotenv()\nimport os\nKEY = os.environ['NO_SUCH_KEY']",
        "try:\n    import no_such_module\nexcept ImportError: ...",
        "import os\nif 'KEY' in os.environ:\n    import no_such_module",
    ],
)
def test_what_the_file_itself_may_prevent_is_no_error(source):
    made(source)
