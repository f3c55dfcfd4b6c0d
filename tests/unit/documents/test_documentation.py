"""What the documents say of flags, error lines, tests and files is so."""

import ast
import re
import runpy
from pathlib import Path

import pytest
from cpu_stack import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), ROOT / "patches/README.md", *ROOT.glob("docs/*.md")]
SOURCES = ("openrlhf_sagc", "eval", "train_scripts", "patches", "tests/oracles")
SHORTEST = 12  # characters of a fragment that is looked for


def test_the_table_of_flags_is_the_parsers():
    table = runpy.run_path(str(ROOT / "train_scripts/flags_table.py"))["table"]()
    for row in table.splitlines():
        assert row.count(" | ") == 2 and len(row) < 170, f"no readable row: {row}"
    page = (ROOT / "docs/flags.md").read_text()
    is_current = f"<!-- flags -->\n{table}<!-- /flags -->\n" in page
    assert is_current, "the flags have changed: run .venv/bin/python train_scripts/flags_table.py --write"


# --- error lines -----------------------------------------------------------------------------------------------------


def texts_of(tree: ast.AST, constants: dict[str, str]):
    """Every string as it is printed, a NUL where a value stands; names of constants are filled in."""

    def part(node):
        if isinstance(node, ast.Constant):
            return str(node.value)
        return constants.get(getattr(node.value, "id", None), "\0")

    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(map(part, node.values))


@pytest.fixture(scope="module")
def printed():
    """All that this project's code may print, joined."""
    files = [file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")]
    trees = [ast.parse(file.read_text()) for file in files]
    assigned = [node for tree in trees for node in tree.body if isinstance(node, ast.Assign)]
    constants = {
        node.targets[0].id: node.value.value
        for node in assigned
        if isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    python = [text for tree in trees for text in texts_of(tree, constants)]
    shell = [file.read_text() for folder in SOURCES for file in (ROOT / folder).rglob("*.sh")]
    return "\0".join(python + shell)


def missing(line: str, printed: str) -> list[str]:
    """Fragments of a quoted line that the code does not print."""
    fragments = [fragment for fragment in line.split("…") if len(fragment.strip()) >= SHORTEST]
    assert fragments, f"too short to be found: {line}"
    return [fragment for fragment in fragments if fragment.strip() not in printed]


def test_error_lines_are_still_printed(printed):
    text = (ROOT / "docs/troubleshooting.md").read_text()
    ours = text[text.index("## Lines of this project") : text.index("## Lines of other packages")]
    cells = re.findall(r"^\| (`.*?`) \|", ours, re.MULTILINE)
    lines = [line for cell in cells for line in re.findall(r"`([^`]+)`", cell)]
    assert len(lines) > 5
    wrong = {line: lost for line in lines if (lost := missing(line, printed))}
    assert not wrong, f"docs/troubleshooting.md quotes what the code does not print any more: {wrong}"


def test_a_line_that_is_not_printed_is_found(printed):
    line = "--rollout.sagc.group_sizes … do not divide the … samples of a step"
    assert missing(line, printed) == [" do not divide the "]


# --- references ------------------------------------------------------------------------------------------------------


def test_tests_that_are_named_exist():
    defined = set()
    for file in ROOT.glob("tests/**/*.py"):
        nodes = ast.walk(ast.parse(file.read_text()))
        defined |= {file.stem, file.name} | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    for document in DOCUMENTS:
        named = set(re.findall(r"`(?:tests/\w+/)?(test_\w+(?:\.py)?)`", document.read_text()))
        assert named <= defined, f"{document.relative_to(ROOT)} names {named - defined}"


def heading_anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    for document in [*DOCUMENTS, *ROOT.glob("eval/studies/**/*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", document.read_text()):
            path = document.parent / target if target else document
            assert path.exists(), f"{document.relative_to(ROOT)}: no {target}"
            assert not anchor or anchor in heading_anchors(path), f"{document.relative_to(ROOT)}: no #{anchor}"
