"""The gates of the patch queue and of the set-up, each on a copy that is broken in one way."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path):
    """A copy of the patch queue with the downloaded wheel; returns its folder."""
    shutil.copytree(ROOT / "patches", tmp_path / "patches")
    shutil.copytree(ROOT / "build" / "wheel", tmp_path / "build" / "wheel")
    return tmp_path


def run(script: Path, *arguments: str, **environment) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": sys.executable, **environment}
    command = ["bash", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def first_patch(folder: Path) -> Path:
    return next(iter(sorted(folder.glob("patches/0001-*.patch"))))


def assert_fails(result, code: int, *words: str) -> None:
    assert result.returncode == code, result.stdout + result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), result.stderr


def test_build_is_repeatable_and_makes_an_installable_wheel(copy):
    assert run(copy / "patches/build.sh").returncode == 0
    (wheel,) = copy.glob("build/dist/*.whl")
    count = len(list(copy.glob("patches/*.patch")))
    assert wheel.name.startswith(f"openrlhf-0.11.2+sagc.{count}-")
    first = wheel.read_bytes()
    assert run(copy / "patches/build.sh").returncode == 0
    assert wheel.read_bytes() == first

    target = copy / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run(install, check=True)
    for file in (copy / "build/patched/openrlhf").rglob("*.py"):
        assert (target / file.relative_to(copy / "build/patched")).read_bytes() == file.read_bytes()
    metadata = (target / f"openrlhf-0.11.2+sagc.{count}.dist-info/METADATA").read_text()
    assert f"\nVersion: 0.11.2+sagc.{count}\n" in metadata


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
    change(first_patch(copy), " == rewards.amin(-1, keepdim=True)", " == rewards.amin(-1)")
    change(
        first_patch(copy),
        "             rewards = rewards - rewards.mean(-1",
        "             rewards = rewards + rewards.mean(-1",
    )
    assert_fails(run(copy / "patches/build.sh"), 12, "0001-", "does not apply to build/base")


def test_message_without_forwarded(copy):
    change(first_patch(copy), "Forwarded:", "Sent:")
    assert_fails(run(copy / "patches/check.sh"), 20, "0001-", "Forwarded")


def test_series_over_budget(copy):
    change(copy / "patches/check.sh", "MAIN_BUDGET=200", "MAIN_BUDGET=20")
    assert_fails(run(copy / "patches/check.sh"), 21, "main series changes", "its budget is 20")


def test_patch_edited_by_hand(copy):
    change(first_patch(copy), "1 file changed", "1 file  changed")
    assert_fails(run(copy / "patches/check.sh"), 22, "0001-", "edited by hand")


@pytest.mark.parametrize(
    "line, code, words",
    [
        ("            constant = rewards.amax((-1, keepdim=True)", 23, "does not compile"),
        ("            constant =  rewards.amax(-1, keepdim=True)", 24, "black would change it"),
    ],
)
def test_patch_that_does_not_compile_or_is_not_formatted(copy, line, code, words):
    good = "            constant = rewards.amax(-1, keepdim=True)"
    for patch in sorted(copy.glob("patches/000*.patch")):
        if good in patch.read_text():
            change(patch, good, line)
    # Re-exported, so that only this gate can see it.
    assert run(copy / "patches/build.sh").returncode == 0
    tree = copy / "build/patched"
    for patch in copy.glob("patches/*.patch"):
        patch.unlink()
    export = ["git", "-C", tree, "format-patch", "-q", "--zero-commit", "--full-index", "--no-signature", "-N"]
    base = subprocess.run(["git", "-C", tree, "rev-list", "--max-parents=0", "HEAD"], capture_output=True, text=True)
    subprocess.run([*export, "-o", copy / "patches", base.stdout.strip()], check=True)
    assert_fails(run(copy / "patches/check.sh"), code, "0001-", words)


def test_series_that_was_not_checked_as_a_whole(copy):
    """Its patches are sound, so that nothing but the lock tells."""
    first_patch(copy).unlink()
    assert_fails(run(copy / "patches/check.sh", "--locked"), 26, "check.lock is about another series")


def test_upstream_tests_that_are_not_all_there(copy, python):
    change(copy / "patches/check.sh", "UPSTREAM_TESTS=221", "UPSTREAM_TESTS=222")
    result = run(copy / "patches/check.sh", PYTHON=str(python))
    assert_fails(result, 25, "/000", "not all 222 upstream tests passed", "221 passed")  # two at a time, in any order
    assert "0001-" in result.stderr


def test_readme_has_a_row_with_the_true_line_count_for_every_patch():
    rows = re.findall(r"^\| \[[^]]*\]\(([^)]*)\) \| .*? \| (\d+) \|", (ROOT / "patches/README.md").read_text(), re.M)
    counts = {}
    for patch in [*ROOT.glob("patches/*.patch"), *ROOT.glob("patches/cpu/*.patch")]:
        counts[str(patch.relative_to(ROOT / "patches"))] = len(
            re.findall(r"^(?!\+\+\+|---)[+-]", patch.read_text(), re.M)
        )
    assert {name: int(lines) for name, lines in rows} == counts


@pytest.fixture
def bare_path(tmp_path):
    """A PATH with what setup.sh calls and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in "bash dirname uname git g++ flock df tail tr grep cat sha256sum date".split():
        (folder / program).symlink_to(shutil.which(program))
    (folder / "python3").symlink_to(Path(sys.executable).resolve())
    return folder


@pytest.mark.parametrize("program", ["git", "g++", "flock"])
def test_setup_names_a_missing_program_before_it_downloads(bare_path, tmp_path, program):
    (bare_path / program).unlink()
    shutil.copytree(ROOT / "train_scripts", tmp_path / "train_scripts")
    result = run(tmp_path / "train_scripts/setup.sh", PATH=str(bare_path))
    assert_fails(result, 2, f"{program} is missing", "apt-get install")
    assert not (tmp_path / ".venv").exists()


def test_setup_names_a_wrong_python(bare_path, tmp_path):
    (bare_path / "python3").unlink()
    (bare_path / "python3").write_text("#!/bin/bash\necho Python 3.9.1\n")
    (bare_path / "python3").chmod(0o755)
    shutil.copytree(ROOT / "train_scripts", tmp_path / "train_scripts")
    result = run(tmp_path / "train_scripts/setup.sh", PATH=str(bare_path))
    assert_fails(result, 2, "needs Python 3.11", "found Python 3.9.1")


def test_setup_names_a_full_disk(bare_path, tmp_path):
    (bare_path / "df").unlink()
    (bare_path / "df").write_text("#!/bin/bash\nprintf ' Avail\\n    3G\\n'\n")
    (bare_path / "df").chmod(0o755)
    shutil.copytree(ROOT / "train_scripts", tmp_path / "train_scripts")
    result = run(tmp_path / "train_scripts/setup.sh", PATH=str(bare_path))
    assert_fails(result, 2, "needs 10 GB of free disk", "found 3 GB")
