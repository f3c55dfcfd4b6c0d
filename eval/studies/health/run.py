"""What healthy looks like: the metrics of a real run, beside those of three runs that go wrong.

    python eval/studies health --tensorboard build/quickstart/seed-0/tensorboard/run --output docs

The first column is the log of a real run. The others are simulated: the policies of training (lib/simulation) on
lengths that no group size brings under the limit, on prompts that the model learns to solve always, and with a reward that
fails more and more often. A simulated run ends where training would end it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from lib.paths import ENGINES, QUICKSTART, ROOT, study_flags
from lib.plots import plt, save
from lib.run_logs.read import read_run
from lib.simulation.flags import training_flags
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import started
from lib.simulation.training import SimulatedTraining

STEPS, LIMIT = 45, 0.3  # the limit is the quickstart's
LENGTHS = LogNormal(median=955, between=1.3, within=0.48, cap=16384)  # as of a reasoning model: see simulate/
LONG_TAIL = LENGTHS._replace(within=1.2)
PANELS = {
    "rate": "straggler rate so far\nsagc/straggler_rate_mean",
    "group_size": "group size\nsagc/group_size",
    "gen_batches": "groups dispatched / needed\ndynamic_filtering/gen_batches",
    "failure_share": "share of rewards that failed\nrollout/reward_failures",
}


class Shown(NamedTuple):
    """A column: steps with an entry for each of PANELS, the panels that tell what is wrong, and whether the run ended."""

    title: str
    steps: list[dict[str, float]]
    telling: tuple[str, ...] = ()
    ended: bool = False


def real(folder: Path) -> list[dict[str, float]]:
    """The panels of a TensorBoard log.

    Raises:
        ValueError: it is not the log of a run with group control and dynamic sampling.
    """
    if not folder.is_dir():
        raise ValueError(f"--tensorboard {folder}: there is no such folder: run train_scripts/quickstart.sh first")
    log = read_run(folder)
    try:
        samples = log["dynamic_filtering/dispatched"] * log["sagc/group_size"]
        panels = {
            "rate": log["sagc/straggler_rate_mean"],
            "group_size": log["sagc/group_size"],
            "gen_batches": log["dynamic_filtering/gen_batches"],
            "failure_share": log["rollout/reward_failures"] / samples,
        }
    except KeyError as error:
        raise ValueError(f"{folder} has no {error}: use the log of a run with this package's flags") from None
    return pd.DataFrame(panels).to_dict("records")


class EasierPrompts(NamedTuple):
    """Lengths of LENGTHS; mean success rates that rise to 1, until no group has a signal."""

    has_correct = True
    progress: list[float]  # of the run, its only entry

    def draw_prompts(self, count: int, generator: np.random.Generator) -> list[tuple[float, float]]:
        mean = 0.5 + 0.499 * self.progress[0]
        rates = generator.beta(2 * mean, 2 * (1 - mean), count)
        return list(zip(LENGTHS.draw_prompts(count, generator), rates.tolist()))

    def draw_rollouts(
        self, prompts_B: list[tuple[float, float]], size: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        lengths, rates = zip(*prompts_B)
        tokens_BR, _ = LENGTHS.draw_rollouts(list(lengths), size, generator)
        return tokens_BR, generator.random(tokens_BR.shape) < np.array(rates)[:, None]

    def expected_tokens(self, prompts_B: list[tuple[float, float]]) -> np.ndarray:
        return LENGTHS.expected_tokens([length for length, _ in prompts_B])


class FailingReward:
    """A run's sampler that gets no reward for `share` of the samples; counts these in `failures`."""

    def __init__(self, sampler):
        self._sampler, self._generator = sampler, np.random.default_rng(0)
        self.share, self.failures = 0.0, 0

    def __getattr__(self, name: str):
        return getattr(self._sampler, name)

    def judge(self, scores_R, candidate=None):
        fails_R = self._generator.random(len(scores_R)) < self.share
        self.failures += int(fails_R.sum())
        return self._sampler.judge([None if fails else score for score, fails in zip(scores_R, fails_R)])


def simulated(source, **settings) -> SimulatedTraining:
    """A run of group control at 16 prompts x 8 samples on eight simulated GPUs."""
    control = {"max_straggler_rate": LIMIT, "objective": "size"}
    return started("sagc", 8, source, ENGINES / "h100-7b.json", batch_size=16, **control, **settings)


def steps_of(run: SimulatedTraining, reward: FailingReward | None = None) -> Iterator[dict[str, float]]:
    """The panels of each further step.

    Raises:
        RuntimeError: the groups that a step may dispatch did not fill it.
    """
    while True:
        before = reward.failures if reward else 0
        step = run.step()
        failures = reward.failures - before if reward else 0
        yield {
            "rate": run.planner.controller.metrics()["straggler_rate_mean"],
            "group_size": step["group_size"],
            "gen_batches": step["dispatched"] / step["prompts"],
            "failure_share": failures / (step["dispatched"] * step["group_size"]),
        }


def out_of_reach() -> Shown:
    """Even the smallest groups have more stragglers than the limit allows."""
    steps = steps_of(simulated(LONG_TAIL))
    return Shown("limit out of reach\n(simulated)", [next(steps) for _ in range(STEPS)], ("rate", "group_size"))


def cap_reached(cap: int) -> Shown:
    """More and more prompts are solved by all samples, until a step cannot be filled."""
    source = EasierPrompts([0.0])
    steps, rows, ended = steps_of(simulated(source, dynamic_sampling=True)), [], False
    for number in range(STEPS):
        source.progress[0] = number / (STEPS - 1)
        try:
            rows.append(next(steps))
        except RuntimeError:
            rows.append({**rows[-1], "gen_batches": cap})
            ended = True
            break
    return Shown("cap reached\n(simulated)", rows, ("gen_batches",), ended)


def reward_failing(max_share: float) -> Shown:
    """From a third of the run on a growing share of samples gets no reward."""
    run = simulated(LENGTHS)
    run.planner.sampler = reward = FailingReward(run.planner.sampler)
    steps, rows = steps_of(run, reward), []
    while len(rows) < STEPS and (not rows or rows[-1]["failure_share"] <= max_share):
        reward.share = 0.2 * max(len(rows) / STEPS - 1 / 3, 0)
        rows.append(next(steps))
    return Shown("reward failing\n(simulated)", rows, ("failure_share",), rows[-1]["failure_share"] > max_share)


def plot(columns: list[Shown], limits: dict[str, tuple[float, str]], path: Path) -> None:
    """A PNG with a column a run and a row a metric; what tells that a run goes wrong is red."""
    figure, axes = plt.subplots(
        len(PANELS), len(columns), sharey="row", figsize=(3.2 * len(columns), 8.6), layout="constrained"
    )
    for axes_of_run, run in zip(axes.T, columns):
        axes_of_run[0].set_title(run.title, fontsize="medium")
        axes_of_run[-1].set_xlabel("step")
        for axis, name in zip(axes_of_run, PANELS):
            telling = name in run.telling
            steps = pd.DataFrame(run.steps, index=range(1, len(run.steps) + 1))
            axis.plot(steps[name], color="C3" if telling else "C0", drawstyle="steps-mid")
            if name in limits:
                value, label = limits[name]
                axis.axhline(value, color="black", linestyle="--", linewidth=1, label=label)
            if telling:
                axis.set_facecolor("#fdecea")
            if telling and run.ended:
                axis.plot(steps.index[-1], steps[name].iloc[-1], "X", color="C3", markersize=9, clip_on=False)
                axis.annotate("the run ends", (0.04, 0.62), xycoords="axes fraction", fontsize="small")
            axis.set_xlim(0, max(len(column.steps) for column in columns) + 1)
            axis.grid(alpha=0.3)
    for axis, (name, label) in zip(axes[:, 0], PANELS.items()):
        axis.set_ylabel(label, fontsize="small")
        axis.set_ylim(bottom=0)
        if name in limits:
            axis.set_ylim(top=1.25 * max(limits[name][0], axis.get_ylim()[1] / 1.05))
            axis.legend(loc="upper left", fontsize="small")
    for axis in axes[1]:
        axis.set_yscale("log", base=2)
        axis.set_ylim(3.4, 40)
        axis.set_yticks([4, 8, 16, 32])
        axis.yaxis.set_major_formatter("{x:.0f}")
    save(figure, path)


def main() -> None:
    parser = study_flags(__doc__, ROOT / "docs")
    log = QUICKSTART / "tensorboard/run"
    parser.add_argument("--tensorboard", type=Path, default=log, help="of a run, by default the quickstart's")
    arguments = parser.parse_args()
    flags = training_flags()
    cap = flags["--algo.dynamic_filtering_max_gen_batches"].default
    max_share = flags["--reward.max_failure_share"].default
    healthy = Shown("healthy\n(a real run)", real(arguments.tensorboard))
    limits = {"rate": (LIMIT, "limit"), "gen_batches": (cap, "max_gen_batches")}
    limits["failure_share"] = max_share, "max_failure_share"
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / "health.png"
    plot([healthy, out_of_reach(), cap_reached(cap), reward_failing(max_share)], limits, path)
    print(path)
