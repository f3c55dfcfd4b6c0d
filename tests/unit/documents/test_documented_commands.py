"""Every command in the documents is one that its own tool takes, that a test runs, or that is marked as needing GPUs.

Bash itself reads the commands, in a folder of stand-ins that note what they are called with; the notes are then given
to the parsers of the scripts. What a command does is not tested here: RUN says where that is.
"""

import argparse
import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cpu_stack import ROOT
from ray.scripts.scripts import cli as ray_commands
from studies.__main__ import COMMIT, FROZEN

import openrlhf_sagc

FILES = [*ROOT.glob("*.md"), ROOT / "patches/README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("eval/studies/**/*.md")]
DOCUMENTS = sorted(str(file.relative_to(ROOT)) for file in FILES)
# How to change a patch, from cp on, is a reader's work: patches/check.sh tells whether the result fits.
COMMAND = re.compile(r"^(?:[A-Z][A-Z0-9_]*=\S+ )*(?:bash|\.venv/bin/python|python3?|pip|ray|sbatch|git|head|for) \S")
MARK = re.compile(r"needs? (?:a GPU|GPUs)|(?:every|each|a) GPU node|[Oo]n \d+ GPUs|[Ww]ith a GPU")
# Beginnings of commands. RUN: those that are run as a whole, and where.
RUN = {
    "bash tests/run.sh": ".ci/run",
    "bash train_scripts/setup.sh": "tests/run.sh",
    "bash patches/build.sh": "train_scripts/setup.sh",
    "bash patches/check.sh": "tests/patches/test_patches.py",
    "bash train_scripts/quickstart.sh": "tests/stack/test_quickstart.py",
    "bash train_scripts/on_cpu.sh cpu-patched": "train_scripts/quickstart.sh",
    "bash train_scripts/on_cpu.sh cpu-base": "tests/stack/conftest.py",
    "bash train_scripts/smoke.sh": "tests/stack/test_smoke.py",
    "bash release.sh": "tests/unit/documents/test_package.py",
    "bash train_scripts/dapo.sh cpu": "tests/unit/flags/test_dapo.py",  # up to the command that it starts
}
# Those that are only read: what they need is more than a test may take.
READ = {
    "bash tests/oracles/run.sh": "an environment of 1.7 GB",
    "pip install .[reports]": "packages from an index",
    "pip wheel --no-deps": "OpenRLHF's wheel from an index",
    "pip uninstall": "undone by hand",
    "bash train_scripts/lock.sh": "versions of an index, which change",
    "bash tests/fresh_machine.sh": "root, debootstrap and half an hour",
    "bash tests/processors.sh": "minutes for each processor",
}
# Those that cannot run here, and why; within three lines the document says on what they run, in words of MARK.
NEEDS_GPUS = {
    "bash install.sh": "the CUDA builds",
    "pip install flash-attn": "CUDA",
    "pip install dist/openrlhf_sagc-": "the CUDA builds; tests/unit/documents/test_package.py installs the wheel alone",
    "bash train_scripts/dapo_qwen2.5_7b.sh": "test_launch_scripts.py runs it up to the command that it starts",
    "bash train_scripts/compare.sh": "tests/stack/test_compare_scripts.py runs its smoke form",
    "bash train_scripts/dapo.sh": "the same with other group sizes",
    "ray job submit": "the CUDA builds; tests/stack/test_cluster.py does it without",
    "python -m pytest tests/kernels": "on CUDA; tests/run.sh runs them in Triton's interpreter",
}
CHECKOUT = ["git", "checkout", COMMIT]
STAND_IN = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" >>"$COMMANDS"
printf '\\n\\0' >>"$COMMANDS"
"""


def commands_of(document: str) -> list[tuple[str, bool]]:
    """Shell text of the fenced and indented blocks and code spans that begin with a command; whether it is marked."""
    text = (ROOT / document).read_text()
    fenced = re.finditer(r"^```(?:bash|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.finditer(r"(?<=\n\n)((?: {4}.*\n)+)", text)
    spans = re.finditer(r"(?<!`)`([^`]+)`(?!`)", text)
    found = [(match, match[1]) for match in fenced]
    found += [(match, re.sub("^ {4}", "", match[1], flags=re.MULTILINE)) for match in indented]
    found += [(match, " ".join(match[1].split())) for match in spans]
    commands = []
    for match, shell in found:
        if COMMAND.match(shell):
            near = text[: match.start()].splitlines()[-3:] + text[match.end() :].splitlines()[:3]
            commands.append((shell, bool(MARK.search("\n".join(near)))))
    return commands


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with stand-ins for every program that a document calls."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("bash", "git", "head", "pip", "python", "python3", "ray", "sbatch", ".venv/bin/python"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    return folder


def calls(programs: Path, shell: str) -> list[list[str]]:
    """The programs that bash calls, with their arguments."""
    log = programs / "log"
    log.write_text("")
    shell = re.sub(r" >\s*\S+", "", shell)  # into folders that are not there
    environment = {"PATH": str(programs), "COMMANDS": str(log)}
    done = subprocess.run(["/bin/bash", "-euc", shell], cwd=programs, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{shell}\n{done.stderr}"
    return [words.split("\0")[:-1] for words in log.read_text().split("\n\0")[:-1]]


class Parsed(Exception):
    """A script's parser has taken its arguments."""


def check_python(words: list[str], monkeypatch) -> None:
    """The script's own parser takes the arguments; nothing after it runs."""
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]), f"no module {words[1]}"
        return
    script = ROOT / words[0]
    assert script.is_file() or (script / "__main__.py").is_file(), f"no {words[0]}"
    if script.is_file() and "add_argument(" not in script.read_text():
        assert words == words[:1], f"{words[0]} takes no arguments"
        return
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser, *args, **kwargs):
        if args or kwargs:  # a parser within the script, for defaults
            return parse(parser, *args, **kwargs)
        parse(parser)
        raise Parsed

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_only)
        patched.setattr(sys, "argv", [*words])
        patched.syspath_prepend(script.parent)
        try:
            runpy.run_path(str(script), run_name="__main__")
        except Parsed:
            return
        except SystemExit:  # the parser has said on stderr what is wrong
            pass
    pytest.fail(f"{words[0]} does not take: {' '.join(words[1:])}")


def check_call(words: list[str], monkeypatch) -> None:
    """The program takes its arguments, as far as can be told without running it."""
    name, *rest = words
    if name == "bash":
        assert (ROOT / rest[0]).is_file(), f"no {rest[0]}"
        subprocess.run(["/bin/bash", "-n", ROOT / rest[0]], check=True)
        if rest[0] == "train_scripts/on_cpu.sh":
            check_call(rest[2:], monkeypatch)
    elif name in ("python", "python3"):
        check_python(rest, monkeypatch)
    elif name == "ray" and rest[0] != "job":
        command = ray_commands.commands[rest[0]]
        command.make_parser(click.Context(command)).parse_args(rest[1:])
    elif name == "ray":
        modules = json.loads(rest[rest.index("--runtime-env-json") + 1])["py_modules"]
        assert modules == [f"dist/openrlhf_sagc-{openrlhf_sagc.__version__}-py3-none-any.whl"]
        check_call(rest[rest.index("--") + 1 :], monkeypatch)
    else:
        assert name in ("head", "pip") or words == CHECKOUT, f"nothing checks {name}"


def is_frozen(words: list[str]) -> bool:
    """Whether only an earlier commit has what the command runs."""
    return words[1:2] == ["eval/studies"] and words[2:3] != [] and words[2] in FROZEN


def listed(words: list[str], table: dict[str, str]) -> bool:
    return " ".join(words).startswith(tuple(table))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands(document, programs, monkeypatch):
    for shell, marked in commands_of(document):
        for words in calls(programs, shell):
            if is_frozen(words):
                assert " ".join(CHECKOUT) in (ROOT / document).read_text(), f"{document} does not say: {CHECKOUT}"
                continue
            check_call(words, monkeypatch)
            if listed(words, RUN) or listed(words, READ):
                continue
            if listed(words, NEEDS_GPUS):
                assert marked, f"{document} does not say near it that it needs GPUs: {shell}"
            else:  # an argument parser has taken them
                assert words[0] not in ("bash", "pip"), f"{document}: nothing runs {' '.join(words)}"


def test_lists_hold_what_is_documented(programs):
    documented = [shell for document in DOCUMENTS for shell, _ in commands_of(document)]
    lines = [" ".join(words) for shell in documented for words in calls(programs, shell)]
    for start in [*RUN, *READ, *NEEDS_GPUS]:
        assert any(line.startswith(start) for line in lines), f"no document has {start}"
    for command, where in RUN.items():
        assert Path(command.split()[1]).name in (ROOT / where).read_text(), f"{where} does not run {command}"


def test_a_wrong_flag_is_found(monkeypatch, capsys):
    with pytest.raises(pytest.fail.Exception, match="eval/studies does not take: objectives --seed_list 1"):
        check_call(["python", "eval/studies", "objectives", "--seed_list", "1"], monkeypatch)
    assert "unrecognized arguments: --seed_list 1" in capsys.readouterr().err
