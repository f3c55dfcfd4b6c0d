"""requirements-cpu.lock, which the set-up installs, against requirements-cpu.txt, which it is made from."""

import os
import re
import subprocess

import pytest
from cpu_stack import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = ROOT / "requirements-cpu.lock"
ENTRY = re.compile(r"^([^ #][^\\\n]*) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M)
PYTHONS = ("3.11", "3.12", "3.13")
TORCH = "torch==2.13.0"


def entries() -> list[tuple[Requirement, int]]:
    """Every requirement of the lock with the number of its hashes."""
    return [(Requirement(text), hashes.count("--hash=")) for text, hashes in ENTRY.findall(LOCK.read_text())]


def locked_for(python: str) -> dict[str, list[Requirement]]:
    """What is installed for this Python on Linux; torch has two lines."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    found: dict[str, list[Requirement]] = {}
    for requirement, _ in entries():
        if requirement.marker is None or requirement.marker.evaluate(environment):
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def test_every_line_of_the_lock_is_a_pin_with_hashes():
    lines = [line for line in LOCK.read_text().splitlines() if line and line[0] not in " #"]
    assert len(lines) == len(entries()) > 150
    assert all(len(requirement.specifier) == 1 and "==" in str(requirement.specifier) for requirement, _ in entries())


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_locked_at_a_version_that_it_allows(python):
    locked = locked_for(python)
    texts = re.findall(r"^[^ #\n]+", (ROOT / "requirements-cpu.txt").read_text(), re.M)
    texts += re.findall("pyseccomp==[0-9.]+", (ROOT / "pyproject.toml").read_text())
    texts += re.findall("kernels>=[0-9.]+,<[0-9.]+", (ROOT / "pyproject.toml").read_text())
    for wanted in map(Requirement, texts):
        pins = locked.get(canonicalize_name(wanted.name), [])
        assert len(pins) == (2 if wanted.name == "torch" else 1), f"{wanted.name}: run train_scripts/lock.sh"
        (version,) = {next(iter(pin.specifier)).version.removesuffix("+cpu") for pin in pins}
        assert wanted.specifier.contains(version), f"{wanted} but the lock has {version}: run train_scripts/lock.sh"


def function_of_setup(name: str) -> str:
    return re.search(rf"^{name}\(\) \{{\n.*?^\}}\n", (ROOT / "train_scripts/setup.sh").read_text(), re.M | re.S)[0]


def picked(pattern: str, wanted: int = 1) -> str:
    """What `locked` of setup.sh writes."""
    function = function_of_setup("locked").replace(">build/wanted.txt", "").replace("echo build/wanted.txt", "")
    command = ["bash", "-c", f"{function}\nlocked '{pattern}' {wanted}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_torch_has_two_lines_of_its_own():
    cpu, cuda = re.search(r"local cpu='([^']*)' cuda='([^']*)'", function_of_setup("install_torch")).groups()
    assert ENTRY.findall(picked(cpu))[0][0] == f"{TORCH}+cpu" and len(ENTRY.findall(picked(cpu))) == 1
    assert picked(cpu).count("--hash") == len(PYTHONS)  # a wheel for each
    names = [Requirement(name).name for name, _ in ENTRY.findall(picked(cuda))]
    assert names.count("torch") == 1 and f"{TORCH} " in picked(cuda) and "nvidia-cublas" in names


def test_a_pattern_and_its_opposite_pick_everything_once():
    both = ENTRY.findall(picked("^(torch==|nvidia-)")) + ENTRY.findall(picked("^(torch==|nvidia-)", 0))
    assert sorted(both) == sorted(ENTRY.findall(LOCK.read_text()))


# What works on the machine: pip or uv finds the build for CPUs by its hash, an index has PyPI's, pip has any.
PLACES = {
    "pip's settings have the build for CPUs": (["pip cpu"], ["pip cpu"]),
    "PyTorch's index has it": (["uv dry", "uv cpu"], ["pip cpu", "uv dry", "uv cpu"]),
    "PyPI's build": (["install cuda"], ["pip cpu", "uv dry", "install cuda"]),
    "a build of the index's own": (
        ["own index", "pip any"],
        ["pip cpu", "uv dry", "install cuda", "own index", "pip any"],
    ),
    "none, and no index of its own": (["pip any"], ["pip cpu", "uv dry", "install cuda", "own index"]),
}


@pytest.mark.parametrize("works, tried", PLACES.values(), ids=PLACES)
def test_torch_is_looked_for_in_one_place_after_another(works, tried):
    """Without its hash it is taken from no index but one that the machine's settings name."""
    stubs = """
        by_hash=(hashed) CUDA_DISK_GB=0 CUDA_SIZE=large
        try() { echo "$1"; [[ ,$WORKS, == *,"$1",* ]]; }
        locked() { case "$1" in *cpu*) echo cpu;; *) echo cuda;; esac; }
        pip() { case "$*" in "hashed cpu") try "pip cpu";; torch==*) try "pip any";; *) exit 9;; esac; }
        uv() { case "$*" in *"--dry-run hashed cpu") try "uv dry";; *"cpu hashed cpu") try "uv cpu";; *) exit 9;; esac; }
        install() { try "install ${2}"; }
        has_own_index() { try "own index"; }
        check_disk() { :; }
        note() { :; }
    """
    script = f"{stubs}\n{function_of_setup('install_torch')}\ninstall_torch"
    environment = {**os.environ, "WORKS": ",".join(works)}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == tried, done.stderr
    assert (done.returncode == 0) == (tried[-1] in works)
