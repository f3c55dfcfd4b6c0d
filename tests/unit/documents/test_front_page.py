"""The README is short, leads to every page, and its flags are taken; no page repeats another."""

import json
import re
import shlex
from collections import defaultdict

import pandas as pd
import pytest
from cpu_stack import ROOT
from openrlhf.cli import train_ppo_ray
from up_to_ray import RayStarted

from openrlhf_sagc.arguments import add_arguments

README = (ROOT / "README.md").read_text()
STUDIES = ROOT / "eval/studies"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
LINES = 130  # that someone reads before they try it
SENTENCE = 60  # characters from which on two equal ones are no chance


def test_the_readme_is_short_and_its_fifth_line_says_what_was_tried():
    lines = README.splitlines()
    assert len(lines) <= LINES
    assert lines[4].startswith("**Status:** measured")
    status = README.split("\n\n")[2]
    assert all(word in status for word in ("measured", "simulated", "untested"))


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


def test_the_quickstarts_numbers_are_its_reports():
    text = (ROOT / "docs/quickstart.md").read_text()
    for seed in (0, 1):
        report = json.loads((STUDIES / f"quickstart/seed-{seed}/report.json").read_text())
        pairs = [("heldout_reward_before", "heldout_reward_after"), ("heldout_solved_before", "heldout_solved_after")]
        pairs.append(("train_reward_first", "train_reward_last"))
        changes = " | ".join(f"{report[before]:.2f} → {report[after]:.2f}" for before, after in pairs)
        figures = f"{report['group_size_mean']:.1f} | {report['straggler_rate']:.3f} | {report['idle_fraction']:.2f}"
        assert f"| {seed} | {report['steps']} | {changes} | {figures} | {report['seconds_per_step']:.1f} |" in text
        if seed == 0:
            reward = [f"{report[name]:.3f}" for name in pairs[0]]
            assert " to ".join(reward) in " ".join(README.split())


def test_the_readmes_gains_are_in_the_results():
    sampling = pd.read_csv(STUDIES / "dynamic_sampling/table.csv").set_index(["data", "OpenRLHF"])
    seconds = sampling["rollout s a group with a signal"].loc["mixed"]
    assert f"{seconds['patched']:.2f} s of rollout instead of {seconds['unpatched']:.2f}" in README
    gains = []
    for file in STUDIES.glob("tail_batching/simulated_*_1.csv"):
        for _, rows in pd.read_csv(file).set_index("policy").groupby("gpus"):
            gains.append(rows.loc["fixed:8@samples", "seconds"] / rows.loc["fixed:8+tail@samples", "seconds"])
    assert len(gains) == 6 and f"{min(gains):.2f} to {max(gains):.1f} times as fast" in README
    placed = pd.read_csv(STUDIES / "placement/seconds.csv")
    times, gpus = placed["times as fast"], placed["gpus"]
    times, gpus = f"{times.min():.2f} to {times.max():.2f}", f"{gpus.min()} to {gpus.max()}"
    assert f"{times} times as fast on {gpus} GPUs" in README
    for algorithm in ("grpo", "dapo"):
        arms = json.loads((STUDIES / f"step_time/{algorithm}/step_time.json").read_text())["arms"]
        (ours,) = [arm for arm in arms if arm["arm"] == "without stream"]
        gain = ours["speedup"]
        times = f"{gain['value']:.2f} [{gain['low']:.2f}, {gain['high']:.2f}] times"
        assert f"a {algorithm.upper()} step {times}" in README
    ours = {}
    for name in ("long_tail", "long_tail_32", "long_tail_dapo_sizes"):
        policies = json.loads((STUDIES / f"compare/{name}/comparison.json").read_text())["policies"]
        (ours[name],) = [row for row in policies if row["policy"] == "fixed:8+tail:1"]
    for gain, words in (
        (ours["long_tail"]["against"]["unpatched:8"]["step"], "times as fast as OpenRLHF's at groups of 8"),
        (ours["long_tail_32"]["sooner"]["0.62"], "times sooner than OpenRLHF at groups of 32"),
        (ours["long_tail_dapo_sizes"]["against"]["unpatched:8"]["step"], "times. Most of the gain"),
        (ours["long_tail_dapo_sizes"]["sooner"]["0.65"], "times sooner than at its best size"),
    ):
        assert f"{gain['value']:.2f} [{gain['low']:.2f}, {gain['high']:.2f}] {words}" in README
    control = pd.read_csv(STUDIES / "group_sizes/table.csv").set_index("policy")["share of the best"]
    free, limited = control["throughput, limit 0.95"], control["throughput, limit 0.2"]
    assert f"{free:.2f} without a limit, {limited:.2f} at a limit of 0.2" in README


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
    """The words of each snippet, and of each row that says which switch."""
    rows, snippets = (README[README.index(f"## {title}") :] for title in ("Which switch?", "Add it to your script"))
    rows, snippets = (text[: text.index("\n## ", 1)] for text in (rows, snippets))
    found = re.findall(r"^```bash\n(.*?)^```", snippets, re.M | re.S) + re.findall(r"`(--[^`]*)`", rows)
    return [shlex.split(text, comments=True) for text in found]


@pytest.mark.parametrize("flags", flags_of_the_readme(), ids=" ".join)
def test_the_snippets_of_the_readme_start_a_run(flags, run_trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a run may write a file
    with pytest.raises(RayStarted):
        run_trainer(*flags)


def test_the_readme_has_snippets_and_rules_to_add():
    assert len(flags_of_the_readme()) >= 6
