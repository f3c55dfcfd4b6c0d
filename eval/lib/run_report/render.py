"""A report as Markdown and as one page: names and flags are data, secrets are hidden, and the page asks for nothing."""

import html
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from lib.run_report.content import Figure, Section, Table
from lib.tables import markdown

from openrlhf_sagc.redaction import without_secrets

LONGEST = 200  # characters of a cell
MARKS = re.compile(r"([\\`*<>|\[\]])")  # of Markdown
INTERVAL = re.compile(r"(\[[-\d.,– ]+\])")


def shown(text: str) -> str:
    """A cell as it is kept: in one line, without secrets, cut."""
    line = " ".join(without_secrets(str(text)).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def redacted(section: Section) -> Section:
    """The section with every text as it is kept; a figure's text is redacted, and keeps its length."""
    blocks: list[str | Table | Figure] = []
    for block in section.blocks:
        if isinstance(block, Table):
            rows = [[shown(cell) for cell in row] for row in block.rows]
            blocks.append(Table([shown(title) for title in block.titles], rows, block.alignment))
        elif isinstance(block, Figure):
            blocks.append(block._replace(svg=re.sub(r">([^<]+)<", lambda text: f">{_svg_text(text[1])}<", block.svg)))
        else:
            blocks.append(without_secrets(block))
    return Section(section.title, blocks)


def _svg_text(text: str) -> str:
    return text if text.isspace() else html.escape(without_secrets(html.unescape(text)), quote=False)


def as_markdown(title: str, verdicts: list[str], sections: list[Section]) -> str:
    """The report as Markdown; its figures are files beside it."""
    text = f"# {plain(title)}\n\n" + "".join(f"- **{plain(line)}**\n" for line in verdicts)
    for section in sections:
        text += f"\n## {section.title}\n"
        for block in section.blocks:
            if isinstance(block, Table):
                rows = [[plain(cell) for cell in row] for row in block.rows]
                text += "\n" + markdown([plain(title) for title in block.titles], rows, block.alignment)
            elif isinstance(block, Figure):
                text += f"\n![{block.caption}]({block.name}.svg)\n"
            else:
                text += f"\n{plain(block)}\n"
    return text


def plain(text: str) -> str:
    """Data in Markdown: its marks are no marks. Numbers keep the brackets of their interval."""
    pieces = INTERVAL.split(text)
    return "".join(piece if INTERVAL.fullmatch(piece) else MARKS.sub(r"\\\1", piece) for piece in pieces)


def as_page(title: str, verdicts: list[str], sections: list[Section]) -> str:
    """The report as one HTML file, with its figures inside."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(title=title, verdicts=verdicts, sections=sections)
