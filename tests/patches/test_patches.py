"""The gates of the patch queue, then each on a copy that is broken in one way."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_stack import ROOT


@pytest.fixture
def copy(tmp_path):
    """A copy of the patch queue with the downloaded wheel; returns its folder."""
    shutil.copytree(ROOT / "patches", tmp_path / "patches")
    shutil.copytree(ROOT / "build" / "wheel", tmp_path / "build" / "wheel")
    (tmp_path / "train_scripts").mkdir()
    shutil.copy(ROOT / "train_scripts/values.sh", tmp_path / "train_scripts")
    shutil.copy(ROOT / "requirements-cpu.txt", tmp_path)  # part of what check.lock is about
    return tmp_path


@pytest.fixture
def short(copy):
    """The copy with few patches, so that the gates of the last one come soon: unpatched on a CPU has the first two."""
    patch = zeroing_patch(copy)
    for other in {*copy.glob("patches/*.patch"), *copy.glob("patches/cpu/*.patch")} - {patch}:
        if not other.match("000[12]-*") or other.match("cpu/0002-*"):
            other.unlink()
    patch.rename(patch.with_name(patch.name.replace("0015-", "0003-")))
    return copy


def run(script: Path, *arguments: str, **environment) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": sys.executable, **environment}
    command = ["bash", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def zeroing_patch(folder: Path) -> Path:
    """The one of group_norm, which stands on OpenRLHF as released."""
    return next(folder.glob("patches/*-Zero-the-group_norm-*.patch"))


def assert_fails(result, code: int, *words: str) -> None:
    assert result.returncode == code, result.stdout + result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), result.stderr


def test_the_series_passes_all_gates(python):
    command = ["bash", ROOT / "patches/check.sh", "--locked"]  # it waits for another run of it, however long
    result = subprocess.run(command, env={**os.environ, "PYTHON": str(python)}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "both series: " in result.stdout


def test_a_build_gives_the_same_commits_again(copy):
    """And those of build/, whatever the user's settings of git are."""
    assert run(copy / "patches/build.sh", GIT_AUTHOR_NAME="someone", GIT_DIR="/none").returncode == 0
    for tree in ("base", "patched", "cpu-base", "cpu-patched"):
        made, there = (head(folder / "build" / tree) for folder in (copy, ROOT))
        assert made == there


def head(tree: Path) -> str:
    return subprocess.run(["git", "-C", tree, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout


def test_the_stamp_is_what_the_set_up_compares(copy):
    assert run(copy / "patches/build.sh").returncode == 0
    files = [
        *sorted(copy.glob("patches/*.patch")),
        *sorted(copy.glob("patches/cpu/*.patch")),
        copy / "patches/trees.py",
    ]
    digest = subprocess.run(["bash", "-c", 'cat "$@" | sha256sum', "bash", *files], capture_output=True, text=True)
    assert (copy / "build/stamp").read_text() == digest.stdout


def test_git_is_missing(copy, tmp_path):
    (tmp_path / "bin").mkdir()
    for program in ("bash", "dirname"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program))
    assert_fails(
        run(copy / "patches/build.sh", PATH=str(tmp_path / "bin")), 2, "git is missing, which applies the patches"
    )


def test_missing_wheel(copy):
    shutil.rmtree(copy / "build/wheel")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    assert_fails(run(copy / "patches/build.sh", **offline), 10, "openrlhf 0.11.2 could not be downloaded")


def test_changed_wheel(copy):
    (wheel,) = copy.glob("build/wheel/*.whl")
    with wheel.open("ab") as file:
        file.write(b"x")
    assert_fails(run(copy / "patches/build.sh"), 11, wheel.name, "sha256", "c969d70db03a")


def test_patch_that_does_not_apply(copy):
    estimator = '        elif args.algo.advantage.estimator == "{}":'
    change(zeroing_patch(copy), estimator.format("group_norm"), estimator.format("norm"))
    assert_fails(run(copy / "patches/build.sh"), 12, "0015-", "does not apply to build/base")


def test_message_without_forwarded(copy):
    change(zeroing_patch(copy), "Forwarded:", "Sent:")
    assert_fails(run(copy / "patches/check.sh"), 20, "0015-", "Forwarded")


def test_message_without_its_risk(copy):
    change(zeroing_patch(copy), "Risk:", "Hope:")
    assert_fails(run(copy / "patches/check.sh"), 20, "0015-", "Risk")


@pytest.mark.parametrize("option", ["--help", "--lockd"])
def test_another_option_is_answered_in_a_line(copy, option):
    result = run(copy / "patches/check.sh", option)
    assert_fails(result, 1, "usage: bash patches/check.sh [--locked | --onto PATH]")
    assert not result.stdout and not (copy / "build/gates").exists()


def test_series_over_budget(copy):
    change(copy / "patches/check.sh", "MAIN_BUDGET=480", "MAIN_BUDGET=20")
    assert_fails(run(copy / "patches/check.sh"), 21, "main series changes", "its budget is 20")


def test_patch_edited_by_hand(copy):
    change(zeroing_patch(copy), "2 files changed", "2 files  changed")
    assert_fails(run(copy / "patches/check.sh"), 22, "0015-", "edited by hand")


def export_again(copy):
    """Exports what the changed patches build, so that only the gate under test can see the change."""
    assert run(copy / "patches/build.sh").returncode == 0
    tree = copy / "build/patched"
    for patch in copy.glob("patches/*.patch"):
        patch.unlink()
    export = ["git", "-C", tree, "format-patch", "-q", "--zero-commit", "--full-index", "--no-signature", "-N"]
    base = subprocess.run(["git", "-C", tree, "rev-list", "--max-parents=0", "HEAD"], capture_output=True, text=True)
    subprocess.run([*export, "-o", copy / "patches", base.stdout.strip()], check=True)


@pytest.mark.parametrize(
    "line, code, words",
    [
        ("            constant = high - low <= 8 * eps * torch.maximum((high, -low)", 23, "does not compile"),
        ("            constant =  high - low <= 8 * eps * torch.maximum(high, -low)", 24, "black would change it"),
    ],
)
def test_patch_that_does_not_compile_or_is_not_formatted(short, python, line, code, words):
    change(zeroing_patch(short), "            constant = high - low <= 8 * eps * torch.maximum(high, -low)", line)
    export_again(short)
    assert_fails(run(short / "patches/check.sh", PYTHON=str(python)), code, "0003-", words)


def test_series_that_was_not_checked_as_a_whole(copy):
    """Its patches are sound, so that nothing but the lock tells."""
    zeroing_patch(copy).unlink()
    assert_fails(run(copy / "patches/check.sh", "--locked"), 26, "check.lock is about another series")


def test_upstream_tests_that_are_not_all_there(copy, python):
    change(copy / "patches/check.sh", "UPSTREAM_TESTS=221", "UPSTREAM_TESTS=999")
    result = run(copy / "patches/check.sh", PYTHON=str(python))
    assert_fails(result, 25, "/000", "not all 999 upstream tests passed", " passed")  # two at a time, in any order
    assert "0001-" in result.stderr


def test_patch_whose_tests_pass_without_it(short, python):
    """Its own tests, of rewards whose mean is exact."""
    inexact = "(0.1, 0.1), (0.3, 0.3), (0.7, 0.7), (0.9, 0.9), (1.29999995, 1.30000007), (-250.0, -250.00002)"
    exact = "(0.5, 0.5), (1.5, 1.5), (2.5, 2.5), (3.5, 3.5), (1.25000000, 1.25000000), (-250.0, -250.00000)"
    change(zeroing_patch(short), inexact, exact)
    export_again(short)
    result = run(short / "patches/check.sh", PYTHON=str(python))
    assert_fails(result, 27, "0003-", "its tests do not fail without it", " passed")


def test_readme_has_a_row_with_the_true_line_count_for_every_patch():
    rows = re.findall(r"^\| \[[^]]*\]\(([^)]*)\) \| .*? \| (\d+) \|", (ROOT / "patches/README.md").read_text(), re.M)
    counts = {}
    for patch in [*ROOT.glob("patches/*.patch"), *ROOT.glob("patches/cpu/*.patch")]:
        files = re.split(r"^diff --git a/", patch.read_text(), flags=re.M)[1:]
        code = "".join(file for file in files if not file.startswith("tests/"))
        counts[str(patch.relative_to(ROOT / "patches"))] = len(re.findall(r"^(?!\+\+\+|---)[+-]", code, re.M))
    assert {name: int(lines) for name, lines in rows} == counts
