"""The trees as they are given away: of a changed file with a notice (Apache-2.0, 4b), of any other as released."""

import runpy

import pytest
from cpu_stack import ROOT

TREES = ("base", "patched", "cpu-base", "cpu-patched")


@pytest.fixture(scope="module")
def maker():
    return runpy.run_path(str(ROOT / "patches/trees.py"))


def code(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.py")}


def test_each_changed_file_has_its_notice_and_no_other(maker, tmp_path):
    maker["export_trees"](ROOT / "build", tmp_path)
    released = code(ROOT / "build/base/openrlhf")
    assert len(released) > 50 and code(tmp_path / "base/openrlhf") == released
    for tree in TREES[1:]:
        made, given = (code(folder / tree / "openrlhf") for folder in (ROOT / "build", tmp_path))
        changed = {name for name, text in made.items() if text != released.get(name)}
        assert changed and given.keys() == made.keys()
        for name, text in given.items():
            assert text == (maker["NOTICE"] if name in changed else "") + made[name]
    assert {path.name for path in tmp_path.iterdir()} == set(TREES)
    assert {path.name for tree in TREES for path in (tmp_path / tree).iterdir()} == {"openrlhf"}
    assert not list(tmp_path.rglob("__pycache__"))


def test_the_notice_is_a_comment_that_says_who_changed_what(maker):
    notice = maker["NOTICE"]
    assert notice.startswith("# ") and notice.endswith("\n") and notice.count("\n") == 1
    assert "OpenRLHF 0.11.2" in notice and "changed by the project openrlhf_sagc" in notice
