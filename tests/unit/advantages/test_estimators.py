"""The table of estimators is the only place that a new one needs."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from cpu_stack import ROOT
from up_to_ray import RayStarted

from openrlhf_sagc.advantages import ESTIMATORS, group_advantages, group_statistics
from openrlhf_sagc.advantages.estimators import Estimator, estimator_named
from openrlhf_sagc.config.flags import openrlhf_parser

TOY = '"toy": Estimator(lambda it: it.rewards_N + it.sizes_G[it.groups_N], whitens=True),'
BEFORE_TORCH = """if True:
    import sys
    from types import SimpleNamespace as N
    sys.modules.update(torch=None, numpy=None)  # no import finds them
    from openrlhf_sagc.advantages.estimators import ESTIMATORS
    from openrlhf_sagc.arguments import add_arguments, off_command
    from openrlhf_sagc.config.checks import check_group
    from openrlhf_sagc.config.flags import openrlhf_parser, parse_flags, parse_plain_flags
    from openrlhf_sagc.redaction import shown
    words = ["--algo.advantage.estimator", "toy"]
    flags = parse_flags(words, add_arguments)
    assert getattr(flags, "algo.advantage.estimator") == "toy" and shown("toy") == "toy"
    args = N(algo=N(advantage=N(estimator="toy")))
    print(repr(off_command(args)))
    try:
        parse_plain_flags(words, openrlhf_parser(), add_arguments, "off")
    except SystemExit as end:
        print(end)
    rollout = N(n_samples_per_prompt=8, batch_size=8, vllm_generate_batch_size=None)
    args.rollout, args.critic = N(**vars(rollout), sagc=N(enable=False, group_sizes=[8], hold="samples")), N(freezing_steps=-1)
    check_group(args, "")
    args.algo.advantage.estimator = "gae"
    try:
        check_group(args, "")
    except SystemExit as end:
        print(end)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The path of a copy of the package whose table has one more line."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "openrlhf_sagc", folder / "openrlhf_sagc", ignore=shutil.ignore_patterns("__pycache__"))
    table = folder / "openrlhf_sagc/advantages/estimators.py"
    text = table.read_text()
    assert text.count("ESTIMATORS = {") == 1
    table.write_text(text.replace("ESTIMATORS = {", "ESTIMATORS = {\n    " + TOY))
    return folder


def lines_of(package, program):
    path = os.pathsep.join([str(package), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, cwd=package, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_one_line_in_the_table_reaches_flags_refusals_and_logs_without_torch(package):
    off, plain, gae = lines_of(package, BEFORE_TORCH)
    assert off == "''"  # OpenRLHF cannot run the script either
    assert "invalid choice: 'toy'" in plain and plain.endswith(": python -m openrlhf_sagc has it")
    assert f"({', '.join(['toy', *ESTIMATORS])} have groups)" in gae


def test_a_new_estimator_is_computed_and_0_in_constant_groups(monkeypatch):
    monkeypatch.setitem(ESTIMATORS, "toy", Estimator(lambda it: it.rewards_N + it.sizes_G[it.groups_N]))
    rewards = torch.tensor([0.0, 1.0, 5.0, 7.0, 7.0])
    assert group_advantages(rewards, [2, 1, 2], "toy").tolist() == [2.0, 3.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("whitens", [False, True])
def test_a_run_starts_with_a_new_estimator_and_says_what_it_does_not_go_with(
    monkeypatch, run_trainer, capsys, whitens
):
    monkeypatch.setitem(ESTIMATORS, "toy", Estimator(lambda it: it.rewards_N, whitens))
    flags = "--algo.advantage.estimator toy --train.stream auto --algo.kl.init_coef 0 --rollout.tail_batching.enable"
    with pytest.raises(RayStarted):
        run_trainer(*flags.split())
    said = capsys.readouterr().out
    assert ("(--algo.advantage.estimator toy whitens over all samples)" in said) == whitens
    assert ("toy whitens advantages over each step, so tail batching changes them" in said) == whitens


def test_an_unknown_name_is_refused_in_every_entry():
    sizes = torch.tensor([2])
    entries = [
        lambda: estimator_named("gae"),
        lambda: group_advantages(torch.rand(2), [2], "gae"),
        lambda: group_statistics(torch.rand(2), sizes, torch.tensor([0, 0]), "gae"),
    ]
    for entry in entries:
        with pytest.raises(ValueError, match=r"estimator must be one of \('group_norm', .*, got 'gae'"):
            entry()


def test_openrlhf_has_those_that_the_table_says():
    choices = next(
        action.choices for action in openrlhf_parser()._actions if action.dest == "algo.advantage.estimator"
    )
    assert {name for name, estimator in ESTIMATORS.items() if estimator.in_openrlhf} == {*choices} & {*ESTIMATORS}


def test_the_page_lists_the_table():
    rows = re.findall(r"^\| `(\w+)` \| ", (ROOT / "docs/advantages.md").read_text(), re.M)
    assert rows == [*ESTIMATORS]
