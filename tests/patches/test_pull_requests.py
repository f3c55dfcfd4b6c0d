"""The pull-request texts say of each patch what is true, and their reproductions print what they show."""

import json
import re

import pytest
from cpu_stack import ROOT

TEXTS = ROOT / "patches/pull_requests"
RUNNER = """
import json, multiprocessing, sys
from unittest import mock

def run(name, code):
    if name != "0001":  # what OpenRLHF imports of flash-attn, which a machine without CUDA has not
        for module in ("flash_attn.bert_padding", "flash_attn.utils.distributed"):
            sys.modules.setdefault(module, mock.MagicMock())
    lines = []
    names = {"__name__": name, "print": lambda *words: lines.append(" ".join(map(str, words)) + "\\n")}
    exec(compile(code, name, "exec"), names)
    return "".join(lines)

outputs = {}
for name, code in json.loads(sys.stdin.read()).items():
    if "init_distributed" in code:  # which a process can do once
        with multiprocessing.get_context("fork").Pool(1) as pool:
            outputs[name] = pool.apply(run, (name, code))
    else:
        outputs[name] = run(name, code)
print("OUTPUTS " + json.dumps(outputs))
"""


def numbered(folder, suffix):
    """Files of the main and the CPU series by number: {"0012": path, ..., "cpu/0001": path, ...}."""
    paths = [*folder.glob(f"[0-9]*{suffix}"), *folder.glob(f"cpu/[0-9]*{suffix}")]
    return {re.match(r"(cpu/)?\d+", str(path.relative_to(folder)))[0]: path for path in sorted(paths)}


PATCHES = numbered(ROOT / "patches", ".patch")


def blocks(number, language):
    return re.findall(rf"```{language}\n(.*?)```", (TEXTS / f"{number}.md").read_text(), re.S)


SNIPPETS = {number: "".join(blocks(number, "python")) for number in PATCHES if blocks(number, "python")}


@pytest.fixture(scope="module")
def printed(tmp_path_factory, run_in_tree):
    """{number: [before, after]}, before on upstream's own files."""
    folder = tmp_path_factory.mktemp("snippets")

    def outputs(tree, snippets):
        """What each snippet prints on this tree, one after the other, with imports in common."""
        output = run_in_tree(tree, "-c", RUNNER, input=json.dumps(snippets), cwd=folder)
        return json.loads(output.splitlines()[-1].removeprefix("OUTPUTS "))

    # The one about the import of flash-attn first; and those of the CPU series before others say which device there is.
    order = sorted(SNIPPETS, key=lambda number: (number != "0001", not number.startswith("cpu"), number))
    before, after = (outputs(tree, {number: SNIPPETS[number] for number in order}) for tree in ("base", "cpu-patched"))
    return {number: [before[number], after[number]] for number in SNIPPETS}


@pytest.mark.parametrize("number", SNIPPETS)
def test_snippet_prints_what_the_text_shows(printed, number):
    def untimed(text):
        return re.sub(r"\d+\.\d+ s ", "N s ", text)

    assert [untimed(text) for text in printed[number]] == [untimed(text) for text in blocks(number, "text")]
    assert printed[number][0] != printed[number][1]


def test_every_patch_has_a_text_and_every_text_a_patch():
    assert set(numbered(TEXTS, ".md")) == set(PATCHES)
    commands = {number for number in PATCHES if blocks(number, "bash")}
    assert set(SNIPPETS) | commands == set(PATCHES)


@pytest.mark.parametrize("number", PATCHES)
def test_title_lines_and_prerequisites_are_those_of_the_patch(number):
    text, patch = (TEXTS / f"{number}.md").read_text(), PATCHES[number].read_text()
    subject = re.search(r"^Subject: \[PATCH\] (.*?)\n(?! )", patch, re.M | re.S)[1].replace("\n", "")
    code = [file for file in re.split(r"^diff --git a/", patch, flags=re.M)[1:] if not file.startswith("tests/")]
    changed = len(re.findall(r"^(?!\+\+\+|---)[+-]", "".join(code), re.M))
    rows = (ROOT / "patches/README.md").read_text()
    needs = re.search(rf"^\| \[{number}\]\(.* \| ([^|]*) \|$", rows, re.M)[1]
    head = re.sub(r"\s+", " ", text.split("##")[0])
    stated = re.fullmatch(r"# (.*?) Lines changed: (\d+) in (\d+) files?\. Prerequisites: (.*)\. ", head)
    assert stated.groups()[:3] == (subject, str(changed), str(len(code)))
    assert (re.findall(r"(?:cpu/)?\d{4}", stated[4]) or ["none"]) == needs.split()


@pytest.mark.parametrize("number", PATCHES)
def test_texts_and_patches_have_the_parts_that_are_asked_of_them(number):
    headings = re.findall(r"^## (.*)$", (TEXTS / f"{number}.md").read_text(), re.M)
    assert headings == ["Problem", "Reproduction", "Numbers", "Risk"]
    # Upstream's check of shell scripts, `bash -n`, has nothing to see.
    assert not re.search(r"^diff --git .*\.sh$", PATCHES[number].read_text(), re.M)
