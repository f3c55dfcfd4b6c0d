"""requirements-cpu.lock, which the set-up installs, against requirements-cpu.txt, which it is made from."""

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
    texts += re.findall(r"^pyseccomp[^ \n]+", (ROOT / "requirements.txt").read_text(), re.M)
    for wanted in map(Requirement, texts):
        pins = locked.get(canonicalize_name(wanted.name), [])
        assert len(pins) == (2 if wanted.name == "torch" else 1), f"{wanted.name}: run train_scripts/lock.sh"
        (version,) = {pin.version.removesuffix("+cpu") for pin in next_versions(pins)}
        assert wanted.specifier.contains(version), f"{wanted} but the lock has {version}: run train_scripts/lock.sh"


def next_versions(pins):
    return [next(iter(pin.specifier)) for pin in pins]


def picked(pattern: str, wanted: int = 1) -> str:
    """What `locked` of setup.sh writes."""
    text = (ROOT / "train_scripts/setup.sh").read_text()
    function = (
        re.search(r"^locked\(\) \{\n.*?^\}\n", text, re.M | re.S)[0]
        .replace(">build/wanted.txt", "")
        .replace("echo build/wanted.txt", "")
    )
    command = ["bash", "-c", f"{function}\nlocked '{pattern}' {wanted}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_torch_has_two_lines_of_its_own():
    text = (ROOT / "train_scripts/setup.sh").read_text()
    cpu, cuda = re.search(r"local cpu='([^']*)' cuda='([^']*)'", text).groups()
    assert ENTRY.findall(picked(cpu))[0][0] == f"{TORCH}+cpu" and len(ENTRY.findall(picked(cpu))) == 1
    assert picked(cpu).count("--hash") == len(PYTHONS)  # a wheel for each
    names = [Requirement(name).name for name, _ in ENTRY.findall(picked(cuda))]
    assert names.count("torch") == 1 and f"{TORCH} " in picked(cuda) and "nvidia-cublas" in names


def test_a_pattern_and_its_opposite_pick_everything_once():
    both = ENTRY.findall(picked("^(torch==|nvidia-)")) + ENTRY.findall(picked("^(torch==|nvidia-)", 0))
    assert sorted(both) == sorted(ENTRY.findall(LOCK.read_text()))
