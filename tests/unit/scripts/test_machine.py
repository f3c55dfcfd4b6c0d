"""What the set-up says of a machine before it installs anything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_stack import ROOT

ALL_THERE = "libseccomp.so.2 => /lib\nlibnuma.so.1 => /lib\n"


def write_program(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


class Machine:
    """A folder with the set-up's scripts, and a PATH with what they call and nothing else."""

    def __init__(self, folder: Path):
        self.folder, self.programs = folder, folder / "bin"
        self.programs.mkdir()
        for program in "bash dirname uname mkdir df tail tr grep cat date".split():
            (self.programs / program).symlink_to(shutil.which(program))
        for program in "git", "g++", "flock":
            write_program(self.programs / program, ":")
        self.python("python3", "3 11")
        self.libraries(ALL_THERE)
        (folder / "train_scripts").symlink_to(ROOT / "train_scripts")
        (folder / "help.sh").symlink_to(ROOT / "train_scripts/help.sh")
        self.setup = folder / "setup.sh"
        text = (ROOT / "train_scripts/setup.sh").read_text()
        self.setup.write_text(text.replace('cd "$(dirname "$0")/.."', f'cd "{folder}"'))

    def python(self, name: str, version: str, lacks: str = "") -> None:
        """A Python that says its version and imports all but `lacks`, `ensurepip` or `Python.h`."""
        says = f"*version_info*) echo {version};; --version) echo Python {version.replace(' ', '.')}.0;;"
        program = f'case "$*" in {says} *{lacks or "nothing"}*) exit 1;; esac'
        write_program(self.programs / name, program)

    def libraries(self, listed: str) -> None:
        write_program(self.programs / "ldconfig", f"cat <<'END'\n{listed}\nEND")

    def run(self, script=None) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PATH": str(self.programs), "LDCONFIG": str(self.programs / "ldconfig")}
        command = ["bash", *(script or [self.setup, "--is-done"])]
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60)

    def found_python(self) -> str:
        return self.run(["-c", ". train_scripts/machine.sh; find_python"]).stdout.strip()


@pytest.fixture
def machine(tmp_path):
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("the set-up ends earlier on a CPU without AVX2")
    return Machine(tmp_path)


def last_line(result) -> str:
    assert result.returncode == 2, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    return line.removeprefix("train_scripts/setup.sh: ")


def test_a_machine_that_has_all_is_not_set_up_yet(machine):
    result = machine.run()
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "")


@pytest.mark.parametrize("program, package", [("git", "git"), ("g++", "g++"), ("flock", "util-linux")])
def test_a_missing_program_is_named_before_anything_is_installed(machine, program, package):
    (machine.programs / program).unlink()
    assert last_line(machine.run()) == (
        f"missing on this machine: {program}; Debian and Ubuntu install it with: apt-get install {package}"
    )
    assert not (machine.folder / ".venv").exists()


def test_all_that_is_missing_is_in_one_line(machine):
    for program in "git", "g++", "flock":
        (machine.programs / program).unlink()
    (machine.programs / "python3").unlink()
    machine.libraries("libc.so.6 => /lib")
    assert last_line(machine.run()) == (
        "missing on this machine: Python 3.11, 3.12 or 3.13, git, g++, flock, libseccomp.so.2 (confines the comparison of "
        "answers), libnuma.so.1 (vLLM needs it); Debian and Ubuntu install it with: apt-get install python3 python3-venv "
        "python3-dev git g++ util-linux libseccomp2 libnuma1"
    )


def test_venv_and_headers_are_those_of_the_python_that_is_taken(machine):
    machine.python("python3", "3 14")
    machine.python("python3.12", "3 12", lacks="ensurepip")
    assert last_line(machine.run()) == (
        "missing on this machine: venv of python3.12; Debian and Ubuntu install it with: apt-get install python3.12-venv"
    )
    machine.python("python3.12", "3 12", lacks="Python.h")
    assert last_line(machine.run()).endswith(
        "headers of python3.12; Debian and Ubuntu install it with: apt-get install python3.12-dev"
    )


@pytest.mark.parametrize("version", ["3 11", "3 12", "3 13"])
def test_python3_is_taken_where_it_fits(machine, version):
    machine.python("python3", version)
    for other in "11", "12", "13":
        machine.python(f"python3.{other}", f"3 {other}")
    assert machine.found_python() == "python3"


@pytest.mark.parametrize("unfit", ["3 9", "3 10", "3 14"])
def test_another_python_is_taken_where_python3_does_not_fit(machine, unfit):
    machine.python("python3", unfit)
    machine.python("python3.11", "3 11")
    assert machine.found_python() == "python3.11"
    machine.python("python3.13", "3 13")
    assert machine.found_python() == "python3.13"


def test_a_shim_that_only_fails_is_no_python(machine):
    machine.python("python3", "3 9")
    write_program(machine.programs / "python3.13", "echo 'python3.13: command not found' >&2; exit 127")
    assert machine.found_python() == ""
    assert last_line(machine.run()) == (
        "missing on this machine: Python 3.11, 3.12 or 3.13 (python3 is Python 3.9.0: put another into PATH, for example "
        "as python3.13)"
    )


def test_a_full_disk_is_named(machine):
    write_program(machine.programs / "df", r"printf ' Avail\n    3G\n'")
    assert "of free disk here, found 3 GB" in last_line(machine.run())


def test_the_python_of_these_tests_fits(machine):
    """Where the machine's own one is asked, with its venv and its headers."""
    (machine.programs / "python3").unlink()
    (machine.programs / "python3").symlink_to(Path(sys.executable).resolve())
    assert machine.found_python() == "python3"
