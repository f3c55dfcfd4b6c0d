"""The package as it is released: an sdist, the wheel that it builds, and both installed where nothing else is."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from cpu_stack import ROOT

import openrlhf_sagc

VERSION = openrlhf_sagc.__version__
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """sdist, wheel: the sdist of what git tracks or would, and the wheel made of it, both without a network."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    files = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for file in files:
        if (ROOT / file).exists():
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, source / file)
    sdist = f"import setuptools.build_meta as backend; backend.build_sdist({str(dist)!r})"
    run(sys.executable, "-c", sdist, cwd=source)
    (archive,) = dist.glob("*.tar.gz")
    run(*PIP, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", dist, archive)
    (wheel,) = dist.glob("*.whl")
    return archive, wheel


def test_the_version_is_the_newest_of_the_changelog():
    versions = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == VERSION
    stated = [path.name for path in ROOT.glob("*.toml") if re.search(rf"\b{re.escape(VERSION)}\b", path.read_text())]
    assert not stated  # openrlhf_sagc/__init__.py alone says it


def test_sdist_holds_the_package_and_what_makes_its_openrlhf(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert built[0].name == f"openrlhf_sagc-{VERSION}.tar.gz"
    for pattern in ("openrlhf_sagc/**/*.py", "patches/**/*.patch", "patches/*.sh", "patches/*.md"):
        assert names >= {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
    assert names >= {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "requirements.txt"}
    assert not [name for name in names if name.startswith(("tests", "eval", "build"))]


def test_wheel_holds_the_package_alone(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
        info = f"openrlhf_sagc-{VERSION}.dist-info/"
        metadata = HeaderParser().parsestr(wheel.read(info + "METADATA").decode())
        (license_file,) = [name for name in names if name.startswith(info) and name.endswith("LICENSE")]
        assert wheel.read(license_file) == (ROOT / "LICENSE").read_bytes()
    assert built[1].name == f"openrlhf_sagc-{VERSION}-py3-none-any.whl"
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("openrlhf_sagc/**/*.py")}
    assert {name for name in names if not name.startswith(info)} == modules
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


def test_going_back_to_openrlhfs_own_wheel_replaces_the_patched_one(tmp_path):
    """With a wheel of the same name for each; pip takes `==` a version for met by its local versions."""
    patched = f"0.11.2+sagc.{len(list(ROOT.glob('patches/0*.patch')))}.g0123abcd"
    for version in ("0.11.2", patched):
        info = f"openrlhf-{version}.dist-info/"
        with zipfile.ZipFile(tmp_path / f"openrlhf-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: openrlhf\nVersion: {version}\n")
            wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(info + "RECORD", "")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    (back,) = set(re.findall(r"pip install --no-deps (openrlhf=\S+)`", (ROOT / "README.md").read_text()))
    for wheel in (f"openrlhf=={patched}", back):
        run(*PIP, "--python", python, "install", "--no-index", "--find-links", tmp_path, "--no-deps", wheel)
    version = "from importlib.metadata import version; print(version('openrlhf'))"
    assert run(python, "-I", "-c", version).strip() == "0.11.2"
