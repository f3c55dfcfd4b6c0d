"""The gates of the patch queue, each on a copy that is broken in one way."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_stack import ROOT


def make_copy(folder: Path) -> Path:
    shutil.copytree(ROOT / "patches", folder / "patches")
    shutil.copytree(ROOT / "build" / "wheel", folder / "build" / "wheel")
    return folder


@pytest.fixture
def copy(tmp_path):
    """A copy of the patch queue with the downloaded wheel; returns its folder."""
    return make_copy(tmp_path)


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


VERSIONS = ["3.11", "3.12", "3.13"]


@pytest.fixture(scope="module")
def interpreters():
    """This Python, and those of the other versions that the machine has."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for version in VERSIONS:
        candidates = [shutil.which(f"python{version}"), *root.glob(f"versions/{version}*/bin/python")]
        for candidate in filter(None, candidates):
            result = subprocess.run([candidate, "-m", "pip", "--version"], capture_output=True, text=True)
            if f"(python {version})" in result.stdout:
                found[version] = candidate
    return {**found, ".".join(map(str, sys.version_info[:2])): sys.executable}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a build, which a second build gives again byte for byte."""
    folder = make_copy(tmp_path_factory.mktemp("wheel"))
    builds = []
    for _ in range(2):
        assert run(folder / "patches/build.sh").returncode == 0
        (path,) = folder.glob("build/dist/*.whl")
        builds.append(path.read_bytes())
    assert builds[0] == builds[1]
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_is_installed_and_imported(wheel, interpreters, tmp_path, version):
    if version not in interpreters:
        pytest.skip(f"needs a Python {version} with pip")
    python, patched = interpreters[version], wheel.parents[1] / "patched"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path, wheel]
    subprocess.run(install, check=True)
    for file in (patched / "openrlhf").rglob("*.py"):
        assert (tmp_path / file.relative_to(patched)).read_bytes() == file.read_bytes()
    script = "import compileall, importlib.metadata, openrlhf; print(importlib.metadata.version('openrlhf'))"
    script += "; assert compileall.compile_dir(openrlhf.__path__[0], quiet=1)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run([python, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() in wheel.name and "+sagc." in result.stdout


def test_version_of_the_wheel_changes_with_the_series(wheel, copy):
    count = len(list(copy.glob("patches/*.patch")))
    assert re.fullmatch(rf"openrlhf-0\.11\.2\+sagc\.{count}\.g[0-9a-f]{{8}}-py3-none-any\.whl", wheel.name)
    change(first_patch(copy), "Risk: none", "Risk: no")
    assert run(copy / "patches/build.sh").returncode == 0
    (other,) = copy.glob("build/dist/*.whl")
    assert other.name != wheel.name


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
    change(first_patch(copy), estimator.format("group_norm"), estimator.format("norm"))
    assert_fails(run(copy / "patches/build.sh"), 12, "0001-", "does not apply to build/base")


def test_message_without_forwarded(copy):
    change(first_patch(copy), "Forwarded:", "Sent:")
    assert_fails(run(copy / "patches/check.sh"), 20, "0001-", "Forwarded")


def test_message_without_its_risk(copy):
    change(first_patch(copy), "Risk:", "Hope:")
    assert_fails(run(copy / "patches/check.sh"), 20, "0001-", "Risk")


def test_series_over_budget(copy):
    change(copy / "patches/check.sh", "MAIN_BUDGET=420", "MAIN_BUDGET=20")
    assert_fails(run(copy / "patches/check.sh"), 21, "main series changes", "its budget is 20")


def test_patch_edited_by_hand(copy):
    change(first_patch(copy), "2 files changed", "2 files  changed")
    assert_fails(run(copy / "patches/check.sh"), 22, "0001-", "edited by hand")


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
def test_patch_that_does_not_compile_or_is_not_formatted(copy, line, code, words):
    change(first_patch(copy), "            constant = high - low <= 8 * eps * torch.maximum(high, -low)", line)
    export_again(copy)
    assert_fails(run(copy / "patches/check.sh"), code, "0001-", words)


def test_series_that_was_not_checked_as_a_whole(copy):
    """Its patches are sound, so that nothing but the lock tells."""
    first_patch(copy).unlink()
    assert_fails(run(copy / "patches/check.sh", "--locked"), 26, "check.lock is about another series")


def test_upstream_tests_that_are_not_all_there(copy, python):
    change(copy / "patches/check.sh", "UPSTREAM_TESTS=221", "UPSTREAM_TESTS=999")
    result = run(copy / "patches/check.sh", PYTHON=str(python))
    assert_fails(result, 25, "/000", "not all 999 upstream tests passed", " passed")  # two at a time, in any order
    assert "0001-" in result.stderr


def test_patch_whose_tests_pass_without_it(copy, python):
    """The first patch's own tests, of rewards whose mean is exact."""
    inexact = "(0.1, 0.1), (0.3, 0.3), (0.7, 0.7), (0.9, 0.9), (1.29999995, 1.30000007), (-250.0, -250.00002)"
    exact = "(0.5, 0.5), (1.5, 1.5), (2.5, 2.5), (3.5, 3.5), (1.25000000, 1.25000000), (-250.0, -250.00000)"
    change(first_patch(copy), inexact, exact)
    export_again(copy)
    result = run(copy / "patches/check.sh", PYTHON=str(python))
    assert_fails(result, 27, "0001-", "its tests do not fail without it", " passed")


def test_readme_has_a_row_with_the_true_line_count_for_every_patch():
    rows = re.findall(r"^\| \[[^]]*\]\(([^)]*)\) \| .*? \| (\d+) \|", (ROOT / "patches/README.md").read_text(), re.M)
    counts = {}
    for patch in [*ROOT.glob("patches/*.patch"), *ROOT.glob("patches/cpu/*.patch")]:
        files = re.split(r"^diff --git a/", patch.read_text(), flags=re.M)[1:]
        code = "".join(file for file in files if not file.startswith("tests/"))
        counts[str(patch.relative_to(ROOT / "patches"))] = len(re.findall(r"^(?!\+\+\+|---)[+-]", code, re.M))
    assert {name: int(lines) for name, lines in rows} == counts
