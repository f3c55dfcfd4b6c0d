"""The report as Markdown and as a page: it asks for nothing, runs nothing, and shows no secrets."""

import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from lib.run_report.content import Section, Table
from lib.run_report.plots import figures
from lib.run_report.render import as_markdown, as_page, redacted, shown
from lib.run_report.write import write_report
from report_runs import arm_of, noisy, run_of

HOSTILE = (
    "<script>alert(1)</script>$x^2$ | [a](http://evil.example) `b` https://user:secret-word@host/x?key=secret-word"
)
EMPTY = {"meta", "br", "img", "link", "input", "path", "use", "rect", "circle", "line", "hr"}


class Page(HTMLParser):
    """Its elements and attributes."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.text, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def written(tmp_path):
    """The folder of a report whose names and notes are hostile."""
    kept = {"flags": {"reward.remote_url": HOSTILE, "x": 1}, "versions": {}, "command": HOSTILE}
    arms = [
        arm_of("off", run_of(noisy(6.0), kept={"flags": {"x": 2}}, reward=0.5, response_length=90.0)),
        arm_of(HOSTILE, run_of(noisy(3.0, seed=1), kept=kept, notes=[HOSTILE], reward=0.5, response_length=90.0)),
    ]
    write_report(arms, tmp_path)
    return tmp_path


def test_the_page_runs_nothing_and_asks_for_nothing(written):
    text = (written / "report.html").read_text()
    page = Page(text)
    assert "table" in page.elements and page.elements.count("svg") == 4
    assert not {"script", "iframe", "object", "embed", "link", "img", "base", "form", "a"} & {*page.elements}
    for name, value in page.attributes:
        assert not name.startswith("on") and name not in ("src", "action", "formaction", "srcset", "data"), (
            name,
            value,
        )
        assert name not in ("href", "xlink:href") or value.startswith("#"), (name, value)
        assert "//" not in (value or "") and "url(http" not in (value or ""), (name, value)
    assert "@import" not in text and "default-src 'none'" in text


def test_names_are_data_and_secrets_are_hidden(written):
    for name in ("report.html", "REPORT.md", "comparison.json", "steps.svg"):
        text = (written / name).read_text()
        assert "secret-word" not in text and (name == "comparison.json" or "<script>" not in text), name
    page = Page((written / "report.html").read_text())
    assert any("<script>alert(1)</script>$x^2$" in text for text in page.text)  # shown as it is
    table = [
        line for line in (written / "REPORT.md").read_text().splitlines() if "alert" in line and line.startswith("|")
    ]
    assert table and all("\\|" in line and "\\<script" in line for line in table)


def test_ids_of_two_figures_do_not_meet():
    made = figures([arm_of("off", run_of(noisy(6.0), reward=0.5, response_length=90.0))])
    ids = [value for figure in made for name, value in Page(figure.svg).attributes if name == "id"]
    assert len(made) == 4 and ids and len(set(ids)) == len(ids)


def test_long_values_are_cut_and_numbers_keep_their_brackets():
    assert len(shown("x" * 5000)) == 201 and shown("a\n  b") == "a b"
    section = redacted(Section("T", [Table(["a"], [["1.50 [1.20, 1.90]"], ["[x](y)"]], "l")]))
    text = as_markdown("t", ["a step is 1.50 [1.20, 1.90] times"], [section])
    assert "| 1.50 [1.20, 1.90] |" in text and "1.50 [1.20, 1.90] times" in text and "[x](y)" not in text
    assert as_page("t", [], [section]).startswith("<!DOCTYPE html>")


def test_a_browser_shows_the_page(written, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    picture = tmp_path / "page.png"
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1200,2000",
        f"--screenshot={picture}",
    ]
    command += [f"--user-data-dir={tmp_path / 'profile'}", (written / "report.html").as_uri()]
    subprocess.run(command, capture_output=True, timeout=300)
    from matplotlib.image import imread

    pixels = imread(picture)[..., :3]
    assert pixels.shape[:2] == (2000, 1200) and pixels.std() > 0.05  # something is drawn
    assert (abs(pixels - [0.121, 0.466, 0.705]).sum(axis=2) < 0.05).mean() > 0.001  # the bars of generation
