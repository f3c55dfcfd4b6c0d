"""patches/check.sh --onto PATH: how the series applies to another OpenRLHF."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cpu_stack import ROOT

BASE = ROOT / "build/base"
MAKER = "openrlhf/trainer/ppo_utils/experience_maker.py"


@pytest.fixture
def tree(tmp_path):
    """A copy of upstream's files that a test may change."""
    return Path(shutil.copytree(BASE, tmp_path / "tree", ignore=shutil.ignore_patterns(".git")))


@pytest.fixture
def few(tmp_path):
    """A folder with the scripts and a few patches; the whole series takes seconds a call."""
    folder = tmp_path / "few/patches"
    (folder / "cpu").mkdir(parents=True)
    for name in ("*.sh", "000[2-4]-*", "0015-*", "cpu/0004-*"):
        for file in (ROOT / "patches").glob(name):
            shutil.copy(file, folder / file.relative_to(ROOT / "patches"))
    return folder


def onto(path, code=0, folder=ROOT / "patches"):
    """What is said of each patch, for its series in turn: [{"0015": "applies; alone", ...}, ...], and the last line."""
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", folder / "check.sh", "--onto", *([path] if path else [])]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == code, result.stdout + result.stderr
    series = []
    for line in result.stdout.splitlines():
        if " series on " in line:
            series.append({})
        else:
            number, _, verdict = line.partition(": ")
            series[-1][number] = verdict
    return series, result.stderr.strip().splitlines()[-1:]


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def patches(folder):
    return [re.sub(r"-.*", "", str(path.relative_to(ROOT / "patches"))) for path in sorted(folder.glob("*.patch"))]


def test_every_patch_applies_where_it_belongs_as_the_readme_says():
    (main, cpu, both), _ = onto(BASE)
    assert list(main) == list(both) == patches(ROOT / "patches") and list(cpu) == patches(ROOT / "patches/cpu")
    assert all(verdict.startswith("applies; ") for verdict in [*main.values(), *cpu.values()])
    text = (ROOT / "patches/README.md").read_text()
    needs = dict(re.findall(r"^\| \[((?:cpu/)?\d{4})\]\(.* \| ([^|]*) \|$", text, re.M))
    how = dict(re.findall(r"^\| ((?:cpu/)?\d{4}) \| [^|]* \| [^|]* \| ([^|]*) \|$", text, re.M))
    assert needs.keys() == how.keys()
    stated = {n: f"{how[n]}; {'alone' if needs[n] == 'none' else f'needs {needs[n]}'}" for n in how}
    assert stated == {**main, **cpu}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_archives_are_tried_and_left_as_they_are(tree, few, tmp_path, kind):
    if kind == "wheel":
        (path,) = (ROOT / "build/wheel").glob("*.whl")
    else:
        path = tmp_path / "openrlhf-0.11.2.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(tree, "openrlhf-0.11.2")
    before = path.read_bytes()
    main, cpu, both = onto(path, folder=few)[0]
    assert [main, cpu, both] == onto(BASE, folder=few)[0] and main.keys() == both.keys() and len(main) == 4
    assert path.read_bytes() == before


def test_patch_of_a_line_that_differs_conflicts_and_the_others_are_tried_without_it(tree):
    change(tree / MAKER, "rewards.std(-1, keepdim=True) + 1e-9", "rewards.std(-1, keepdim=True) + 1e-6")
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    (main, cpu, both), last = onto(tree, 31)
    assert "not every patch applies" in last[0]
    assert main.pop("0015") == both["0015"] == f"conflicts in {MAKER}"
    assert main["0016"] == "applies; alone (tried without 0015)"
    for number, verdict in main.items():
        assert re.search(r"^applies.*\(tried without 0015\)$" if number > "0015" else "^applies; [^(]*$", verdict)
    assert not any("without" in verdict for verdict in cpu.values())
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_lines_above_a_hunk_are_an_offset(tree):
    change(tree / MAKER, "        self.kl_ctl = kl_controller\n", "        self.kl_ctl = kl_controller\n\n\n")
    (main, _, _), _ = onto(tree)
    assert main["0015"] == "applies with offset 2 lines; alone" and main["0016"] == "applies; alone"


def test_changed_context_is_fuzz(tree):
    change(tree / MAKER, 'estimator in ["reinforce_baseline", "dr_grpo"]', 'estimator in ["dr_grpo"]')
    (main, _, _), _ = onto(tree, 31)
    assert main["0015"] == "applies with fuzz; alone"


def test_what_upstream_has_taken_is_already_there(tree):
    (first,) = (ROOT / "patches").glob("0015-*.patch")
    subprocess.run(["git", "apply", first], cwd=tree, check=True)
    (main, _, _), _ = onto(tree)
    assert main["0015"] == "already there" and main["0008"] == "applies; alone"


def test_file_that_is_missing(tree):
    (tree / "tests/test_agent.py").unlink()
    (main, _, _), _ = onto(tree, 31)
    assert main["0020"] == "conflicts in tests/test_agent.py"
    assert main["0021"] == "applies; alone (tried without 0020)"


@pytest.mark.parametrize("path", [None, "nowhere", "empty.whl", "empty.tar.gz", "."])
def test_what_is_no_openrlhf(tmp_path, path):
    for name in ("empty.whl", "empty.tar.gz"):
        (tmp_path / name).touch()
    series, (last,) = onto(path and tmp_path / path, 30)
    assert not series and last.startswith("patches/check.sh --onto: ") and ("is no" in last)
