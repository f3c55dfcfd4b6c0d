"""For the tests of preflight.py and of what it asks."""

import runpy
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT


@pytest.fixture(scope="module")
def preflight():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "train_scripts" / "preflight.py")))


@pytest.fixture
def no_token(monkeypatch, tmp_path):
    """A shell of which Ray would find no token."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path
