"""The README is short, leads to every page, and its flags are taken; no page repeats another."""

import json
import re
import shlex
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from cpu_stack import ROOT
from openrlhf.cli import train_ppo_ray
from studies.drafts.run import times_as_fast
from studies.paced.table import BARS, seconds_of, table
from studies.sorted_steps.measured import against_plain
from studies.sorted_steps.run import FIRST_EPISODE, MEASURED
from up_to_ray import RayStarted

from openrlhf_sagc.arguments import add_arguments

README = (ROOT / "README.md").read_text()
STUDIES = ROOT / "eval/studies"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
COMMAND = "python -m openrlhf_sagc "
LINES = {"the page": 110, "the first screen": 25}  # the first screen ends with the command
SOURCES = {"measured", "predicted", "not run"}
INTERVAL = r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]"
SENTENCE = 60  # characters from which on two equal ones are no chance
CORRECTED = {"1.48 [0.94, 2.34]", "1.03 [0.75, 1.41]", "1.13 [1.00, 1.27]", "1.10 [0.81, 1.49]"}  # in CHANGELOG.md


def table_of(text: str) -> list[list[str]]:
    """The cells of the rows of a text's first table, below its head."""
    rows = re.search(r"^\|.*\|\n\|[-:| ]+\|\n((?:\|.*\|\n)+)", text, re.M)
    assert rows, "no table"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1].splitlines()]


def test_the_first_screen_ends_with_the_command_and_is_short():
    lines = README.splitlines()
    command = next(number for number, line in enumerate(lines, 1) if line.startswith(COMMAND))
    table = next(number for number, line in enumerate(lines, 1) if line.startswith("|"))
    assert command < table <= LINES["the first screen"] and len(lines) <= LINES["the page"]
    assert sum(line.startswith("- ") for line in lines[:table]) == 5
    assert {re.sub(r"[],[].*", "", row[-1].lstrip("[")) for row in table_of(README)} == SOURCES


def test_the_readme_has_whole_numbers_and_no_intervals():
    assert not re.search(r"\[-?\d[^]]*, ", README)
    assert not [cell for row in table_of(README) for cell in row[1:] if re.search(r"\d[.,]\d", cell)]


def test_every_page_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\(([^)#\s]+)", README))
    pages = [str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]]
    assert set(pages) - {"README.md"} <= linked
    assert {"LICENSE", "CITATION.cff"} <= linked


def test_no_page_repeats_a_sentence_of_another():
    pages = defaultdict(set)
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        prose = " ".join(line for line in text.splitlines() if not line.startswith(("|", "    ", "#")))
        for sentence in re.split(r"(?<=[.:]) ", prose):
            if len(sentence) >= SENTENCE:
                pages[sentence].add(page.name)
    assert len(pages) > 100
    assert not {sentence: names for sentence, names in pages.items() if len(names) > 1}


# --- numbers ---------------------------------------------------------------------------------------------------------


def tail_batching_gains() -> list[float]:
    """How many times as fast a simulated step is with it, for each cap and number of GPUs."""
    gains = []
    for file in STUDIES.glob("tail_batching/simulated_*_1.csv"):
        for _, rows in pd.read_csv(file).set_index("policy").groupby("gpus"):
            gains.append(rows.loc["fixed:8@samples", "seconds"] / rows.loc["fixed:8+tail:stop@samples", "seconds"])
    assert len(gains) == 6
    return gains


def test_the_first_screens_numbers_are_those_of_the_studies():
    steps = pd.read_csv(STUDIES / "paced/steps.csv")
    *measured, predicted, not_run = table_of(README)
    cells = [tuple(map(int, re.findall(r"\d+", " ".join(row[1:-1])))) for row in measured]
    assert cells == [tuple(round(seconds_of(steps, shape, arm)) for arm in arms) for shape, arms in BARS.values()]
    shares = pd.read_csv(STUDIES / "sorted_steps/lengths.csv").query("filter")
    logs = np.log(shares.set_index(["lengths", "prompts come", "gpus"])["step"])
    ends = (100 * np.exp(logs.groupby(level=[0, 1, 2]).mean())).groupby("gpus").agg(["min", "max"])
    assert predicted[1:4] == ["100", "", ", ".join(f"{low:.0f} to {high:.0f}" for low, high in ends.to_numpy())]
    assert not "".join(not_run[1:-1])


def intervals(found) -> set[str]:
    """As documents have them, of everything in a JSON file that has a value, a lower and an upper end."""
    if isinstance(found, list):
        return set().union(*map(intervals, found))
    if not isinstance(found, dict):
        return set()
    ends = [found.get(name) for name in ("value", "low", "high")]
    own = {"{:.2f} [{:.2f}, {:.2f}]".format(*ends)} if None not in ends else set()
    return own.union(*map(intervals, found.values()))


def test_intervals_in_the_documents_are_those_of_the_studies():
    files = [*STUDIES.rglob("comparison.json"), *STUDIES.rglob("step_time.json")]
    known = set().union(*(intervals(json.loads(file.read_text())) for file in files))
    sorted_steps = against_plain(pd.read_csv(MEASURED), "fixed:8", FIRST_EPISODE)
    known |= {*sorted_steps.to_numpy().ravel()}
    paced = table(*(pd.read_csv(STUDIES / f"paced/{name}.csv") for name in ("steps", "evaluations")))
    drafts = times_as_fast(pd.read_csv(STUDIES / "drafts/predicted.csv")).to_csv()
    for text in ((STUDIES / "floor/REPORT.md").read_text(), paced, drafts):
        known |= {*re.findall(INTERVAL, text)}
    assert {*paced.splitlines()} <= {*(STUDIES / "paced/README.md").read_text().splitlines(), "two GPUs"}
    for page in [*PAGES, ROOT / "RESULTS.md", ROOT / "CHANGELOG.md"]:
        named = set(re.findall(INTERVAL, " ".join(page.read_text().split())))
        named -= CORRECTED if page.name == "CHANGELOG.md" else set()
        assert named <= known, f"{page.name}: no study has {sorted(named - known)}"


def numbers_on(study: str) -> set[str]:
    """The numbers in the claim of RESULTS.md that links to this study."""
    claims = [row.strip("|").split("|") for row in re.findall(r"^\|.*\|$", (ROOT / "RESULTS.md").read_text(), re.M)]
    linked = [row for row in claims if f"](eval/studies/{study})" in "".join(row)]
    assert linked, f"no claim links to {study}"
    return set(re.findall(r"\d+(?:\.\d+)?", " ".join(cell for row in linked for cell in row)))


def test_numbers_of_the_claims_are_those_of_the_studies():
    sampling = pd.read_csv(STUDIES / "dynamic_sampling/table.csv").set_index(["data", "OpenRLHF"])
    for data in ("mixed", "real"):
        seconds = sampling["rollout s a group with a signal"].loc[data]
        assert {f"{seconds[name]:.3f}" for name in ("patched", "unpatched")} <= numbers_on("dynamic_sampling")
    rows = pd.read_csv(STUDIES / "sorted_steps/runs.csv").set_index(["arm", "gpus", "seed"])["last half"].sort_index()
    for arm in ("fixed:8+tail:sort", "the same, ratio 1.02"):
        times = np.exp(np.log(rows.loc["fixed:8+tail:stop"] / rows.loc[arm]).groupby("gpus").mean())
        assert {f"{gain:.2f}" for gain in times} <= numbers_on("sorted_steps")
    gains = tail_batching_gains()
    assert {f"{min(gains):.2f}", f"{max(gains):.2f}"} <= numbers_on("tail_batching")
    placed = pd.read_csv(STUDIES / "placement/seconds.csv")["times as fast"]
    assert {f"{placed.min():.2f}", f"{placed.max():.2f}"} <= numbers_on("placement")
    control = pd.read_csv(STUDIES / "group_sizes/table.csv").set_index("policy")["share of the best"]
    shares = {f"{control[f'throughput, limit {limit}']:.3f}" for limit in ("0.95", "0.2")}
    assert shares <= numbers_on("group_sizes")
    free = pd.read_csv(STUDIES / "objectives/cells.csv").query("limit == 0.95")["throughput"]
    assert {str(len(free)), f"{free.mean():.3f}", f"{free.min():.3f}"} <= numbers_on("objectives")


def test_the_quickstarts_numbers_are_its_reports():
    text = (ROOT / "docs/quickstart.md").read_text()
    for seed in (0, 1):
        report = json.loads((STUDIES / f"quickstart/seed-{seed}/report.json").read_text())
        pairs = [("heldout_reward_before", "heldout_reward_after"), ("heldout_solved_before", "heldout_solved_after")]
        pairs.append(("train_reward_first", "train_reward_last"))
        changes = " | ".join(f"{report[before]:.2f} → {report[after]:.2f}" for before, after in pairs)
        figures = f"{report['group_size_mean']:.1f} | {report['straggler_rate']:.3f} | {report['idle_fraction']:.2f}"
        assert f"| {seed} | {report['steps']} | {changes} | {figures} | {report['seconds_per_step']:.1f} |" in text


# --- flags -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def options():
    """Every flag of the command, those of OpenRLHF and those of this package."""
    parser = train_ppo_ray.build_parser()
    add_arguments(parser)
    return [option for action in parser._actions for option in action.option_strings]


def unknown(text: str, options: list[str]) -> set[str]:
    """Flags with a dot in their name that no option has; `--a.b.*` and `--a.b_*` stand for some."""
    named = set(re.findall(r"--[a-z]\w*(?:\.\w+)+(?:\.?\*)?|--[a-z]\w*\.\*", text))
    is_known = {name: [option for option in options if option.startswith(name.rstrip("*"))] for name in named}
    return {name for name in named if not (is_known[name] if name.endswith("*") else name in options)}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "RESULTS.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_flags_that_are_named_exist(page, options):
    assert not unknown(page.read_text(), options)


def test_a_flag_that_does_not_exist_is_found(options):
    assert unknown("`--rollout.sagc.enabled`, `--rollout.sage.*`, `--rollout.sagc.*`", options) == {
        "--rollout.sagc.enabled",
        "--rollout.sage.*",
    }


def flags_of_the_readme() -> list[list[str]]:
    """The words behind the command, and those of each row that says which switch."""
    commands = re.findall(rf"^{COMMAND}(--.*)", README, re.M)
    rows = table_of(README[README.index("## Which switch?") :])
    return [shlex.split(text) for text in [*commands, *(row[-1].strip("`") for row in rows)]]


@pytest.mark.parametrize("flags", flags_of_the_readme(), ids=" ".join)
def test_the_flags_of_the_readme_start_a_run(flags, run_trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a run may write a file
    with pytest.raises(RayStarted):
        run_trainer(*flags)


def test_the_readme_has_a_command_and_rules_to_add():
    assert len(flags_of_the_readme()) == 7
