"""Bash computes with checked numbers only, and no script prints what a terminal obeys."""

import os
import re
import shutil
import subprocess

import pytest
from cpu_stack import ROOT

SCRIPTS = [
    *subprocess.run(["git", "ls-files", "*.sh", ".ci/run"], cwd=ROOT, capture_output=True, text=True).stdout.split()
]
NAME = re.compile(r"(?<![\w#])[A-Za-z_]\w*")
OWN = {"SECONDS"}  # bash reads it as a number
OF_A_CLOCK = {("train_scripts/on_cpu.sh", "made")}  # stat's, of ten digits
COMPARED = re.compile(r"""(\S+)\s+-(?:eq|ne|lt|le|gt|ge)\s+("[^"]*"|[^\s\];]+)""")
SLICED = re.compile(r"\$\{[\w@*]+(?:\[[@*]\])?:([^-=+?}][^}]*)\}")
INDEXED = re.compile(r"(?:\$\{|^\s*|; )(\w+)\[([^]@*]+)\](?:\+?=|\})", re.M)
OTHERS = re.compile(
    r"\b(?:declare|local|typeset)\s+-\w*i\w*\s|\blet\s+\w+=|(?:\btest|\[\[?)\s+(?:!\s+)?-v\s|\bprintf -v \W"
)


def bash_of(text: str) -> str:
    """A script without its comments and without what stands in single quotes, but for traps: programs of awk, patterns."""
    text = re.sub(r"(?m)(^|\s)#.*$", r"\1", text)
    return re.sub(r"(?s)(trap )?(?<=[\s=(])'[^']*'", lambda quoted: quoted[0] if quoted[1] else "''", text)


def arithmetic(text: str) -> list[str]:
    """What bash computes in a script."""
    found = [piece for match in COMPARED.finditer(text) for piece in match.groups()]
    found += [match[1] for match in SLICED.finditer(text)]
    maps = set(re.findall(r"declare -A (\w+)", text))
    found += [index for array, index in INDEXED.findall(text) if array not in maps]
    for start in re.finditer(r"(?:\$|(?<![\w$(]))\(\(", text):
        depth, end = 2, start.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        found.append(text[start.end() : end - 2])
    return found


def unchecked(name: str, text: str, sourced: str = "") -> list[str]:
    """What a script computes with that is no literal, no result, and is not given to check_numbers."""
    text, faults = bash_of(text), OTHERS.findall(text)
    checked = set(re.findall(r"\b\w+", " ".join(re.findall(r"check_numbers ([\w ]+)", text + sourced)))) | OWN
    for piece in arithmetic(text):
        piece = re.sub(r"\$\{#[^}]*\}|\$[!?]", "0", piece)
        faults += [piece] * bool(re.search(r"\$\(|\$\{?[\d@*]", re.sub(r"\$\(\(|\$\(date \+%s\)", "", piece)))
        for used in {*NAME.findall(re.sub(r"\$\(date \+%s\)|:-", " ", piece))} - checked:
            values = re.findall(rf"(?<![\w$-]){used}\s?=\s?(?!\${used} )(\S*)", text + sourced)
            taken = re.search(rf"\bfor {used}\b|\b(?:read|mapfile) [^;\n]*\b{used}\b", text)
            safe = values and all(re.match(r"\d+\b|\$\(\(|\$SECONDS\b|\$[?!]|\$\{#", value) for value in values)
            if not safe and (name, used) not in OF_A_CLOCK or taken:
                faults.append(used)
    return faults


@pytest.mark.parametrize("script", SCRIPTS)
def test_bash_computes_with_checked_numbers_only(script):
    text = (ROOT / script).read_text()
    sourced = "".join((ROOT / "train_scripts" / name).read_text() for name in ("clock.sh",) if name in text)
    assert unchecked(script, text, bash_of(sourced)) == []


@pytest.mark.parametrize(
    "line",
    [
        "seconds=$(($1 * 2))",
        "AFTER=${AFTER:-0}\necho $((AFTER + 1))",
        "((COUNT > 1)) && echo",
        "[[ $COUNT -gt 1 ]]",
        '[ 1 -le "$COUNT" ]',
        "echo ${text:COUNT}",
        "echo ${list[COUNT]}",
        "list[$COUNT]=1",
        "local -i count=$COUNT",
        "let x=COUNT",
        "[[ -v $COUNT ]]",
        "printf -v $COUNT x",
        "read -r count\necho $((count))",
        "count=$(wc -l)\n[ $count -gt 1 ]",
        "echo $(($(wc -l) + 1))",
    ],
)
def test_a_number_that_is_not_checked_is_found(line):
    assert unchecked("a.sh", line)
    assert not unchecked("a.sh", "COUNT=3 text=x\ncheck_numbers 1 count\necho $((COUNT + count)) ${text:1}")


ODD = ["x[$(touch {ran})]", "08", "1" * 30, "-1", "1.5", "a\x1b[31m\r", "\udc9b31m", "\u202e1", "١"]


@pytest.mark.parametrize("value", ODD, ids=ascii)
@pytest.mark.parametrize(
    ("command", "variable"),
    [
        (". train_scripts/clock.sh; measure_machine; duration 5", "SLOWNESS"),
        (". train_scripts/clock.sh; duration 5", "SLOWNESS"),
        ('SLOWNESS=100; . train_scripts/clock.sh; duration "$SECONDS_LEFT"', "SECONDS_LEFT"),
        ("bash train_scripts/setup.sh --is-done", "AFTER"),
        ("bash train_scripts/quickstart.sh", "PROMPTS"),
        ("bash train_scripts/smoke.sh dapo_qwen2.5_7b.sh", "STEPS"),
        ("bash train_scripts/dapo.sh cpu", "MAX_NEW_TOKENS"),
    ],
)
def test_a_number_of_the_environment_ends_in_a_line_that_names_it(tmp_path, command, variable, value):
    shutil.copytree(ROOT / "train_scripts", tmp_path / "train_scripts")  # they write to build/
    value = value.format(ran=tmp_path / "ran")
    done = subprocess.run(
        ["bash", "-c", command],
        env={"PATH": os.defpath, variable: value},
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2 and not (tmp_path / "ran").exists()
    (line,) = done.stderr.decode().splitlines()
    name = "seconds" if variable == "SECONDS_LEFT" else variable
    assert f"{name} is '" in line and "give a whole number" in line and line.isprintable()


@pytest.mark.parametrize("variable", ["SAGC", "DEVICE", "RUN_NAME", "OUTPUT", "ISOLATED_NETWORK", "NODES"])
def test_a_launch_prints_nothing_that_a_terminal_obeys(tmp_path, variable):
    """Python and Ray are programs that print nothing."""
    for name in ("python3", "ray"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    given = {"PATH": f"{tmp_path}:{os.defpath}", "REWARD": "/r.py", "RAY_TMPDIR": tmp_path, "OUTPUT": tmp_path / "o"}
    given[variable] = "a\x1b]0;b\x07\rc\u202ed\u009be\nf"
    done = subprocess.run(
        ["bash", ROOT / "train_scripts/dapo_qwen2.5_7b.sh"], env=given, capture_output=True, cwd=tmp_path
    )
    assert b"a^[]0;b^G^Mc" in done.stderr and done.stderr.decode().replace("\n", "").isascii()
    assert all(line.isprintable() for line in done.stderr.decode().splitlines())


def test_a_name_in_another_script_stays_as_it_is():
    run = ["bash", "-c", '. train_scripts/values.sh; shown "$1"', "bash", "donnée 日本 🙂"]
    assert subprocess.run(run, cwd=ROOT, capture_output=True, text=True).stdout == "donnée 日本 🙂\n"
