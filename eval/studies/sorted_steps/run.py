"""What sorted steps gain against tail batching that stops, simulated, and how far an ideal scheduler is.

python eval/studies sorted_steps          # 4,096 prompts in five epochs, lengths like a reasoning model's up to 16k tokens
python eval/studies sorted_steps sizes    # the sizes of the recipes, on few and many GPUs: whether the default ever loses

The ideal scheduler knows every response before it is sampled: frames are sorted by the longest one of each group, and
nothing is stopped.
"""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
from lib.paths import ENGINES, study_flags
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.flags import default_arguments
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import SUMMED, train
from lib.tables import show
from rich.progress import track

LENGTHS = LogNormal(median=955, between=1.3, within=0.48, cap=16384)
PROMPTS, STEPS = 4096, 160  # five epochs of 128 prompts a step
STOP, IDEAL = "fixed:8+tail:stop", "ideal"
ARMS = {  # policy and prompt_ratio
    STOP: (STOP, None),
    "fixed:8": ("fixed:8", None),
    "fixed:8+tail:sort": ("fixed:8+tail:sort", None),
    "the same, ratio 1.02": ("fixed:8+tail:sort", 1.02),
    "fixed:8+tail": ("fixed:8+tail", None),
    IDEAL: ("fixed:8+tail:sort", None),
}


class Epochs:
    """A set of prompts, each of which comes once an epoch; what a group's rollouts will be is drawn with its prompt.

    A prompt is drawn as (its number, tokens of its rollouts); a group that is rolled out again has others.
    """

    has_correct = False

    def __init__(self, lengths: LogNormal, prompts: int, size: int, seed: int):
        self._lengths, self._size, self._left = lengths, size, list[int]()
        self._rng = np.random.default_rng([seed, 1])
        self._logs_P = math.log(lengths.median) + lengths.between * self._rng.standard_normal(prompts)
        self._first: dict[int, np.ndarray] = {}  # of the prompts that were drawn and not rolled out yet

    def draw_prompts(self, count: int, generator: np.random.Generator) -> list[int]:
        drawn: list[int] = []
        while len(drawn) < count:
            self._left = self._left or self._rng.permutation(len(self._logs_P)).tolist()
            missing = count - len(drawn)
            drawn += self._left[:missing]
            self._left = self._left[missing:]
        tokens_BR, _ = self._lengths.draw_rollouts(self._logs_P[drawn].tolist(), self._size, self._rng)
        self._first |= zip(drawn, tokens_BR)
        return drawn

    def draw_rollouts(
        self, prompts_B: list[int], size: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, None]:
        again_BR, _ = self._lengths.draw_rollouts(self._logs_P[prompts_B].tolist(), size, self._rng)
        for row, prompt in enumerate(prompts_B):
            if (first_R := self._first.pop(prompt, None)) is not None:
                again_BR[row] = first_R
        return again_BR, None

    def expected_tokens(self, prompts_B: list[int]) -> np.ndarray:
        return self._lengths.expected_tokens(self._logs_P[prompts_B].tolist())

    def longest(self, prompt: str) -> float:
        """Of the group that a prompt will have, by its identity."""
        return float(self._first[int(prompt.partition("\0")[0])].max())


def rows_of(arm: str, gpus: int, seed: int) -> pd.DataFrame:
    """The figures of each step of a run."""
    word, ratio = ARMS[arm]
    source = Epochs(LENGTHS, PROMPTS, 8, seed)
    settings = {"batch_size": 128, "n_samples_per_prompt": 8, "prompt_tokens": 256, "dynamic_sampling": False}
    arguments = default_arguments(**settings, seed=seed, prompt_ratio=ratio)
    run = train(parse_policy(word), gpus, source, CostModel.load(ENGINES / "h100-7b.json"), arguments)
    if arm == IDEAL:
        run.planner.predictor.predict = source.longest
    return pd.DataFrame(run.step() for _ in range(STEPS)).assign(arm=arm, gpus=gpus, seed=seed)


def measure(gpus: list[int], seeds: list[int]) -> pd.DataFrame:
    """A row for each run: seconds of generation in the first epoch, in the last half and in all, and shares of tokens."""
    found = []
    for count, arm, seed in track([*itertools.product(gpus, ARMS, seeds)], "simulating"):
        steps = rows_of(arm, count, seed)
        seconds, sums = steps["generation_seconds"], steps[[*SUMMED]].sum()
        row = {"gpus": count, "arm": arm, "seed": seed, "first epoch": seconds[: STEPS // 5].sum()}
        row |= {"last half": seconds[STEPS // 2 :].sum(), "all": seconds.sum()}
        row |= {"wasted_share": sums["wasted_tokens"] / sums["decoded_tokens"]}
        row |= {"trained_length_ratio": sums["trained_tokens"] / sums["expected_tokens"]}
        late = steps[STEPS // 2 :][[*SUMMED]].sum()
        row |= {"late_wasted_share": late["wasted_tokens"] / late["decoded_tokens"]}
        found.append(row | {"late_length_ratio": late["trained_tokens"] / late["expected_tokens"]})
    return pd.DataFrame(found)


def against_stop(rows: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast as tail batching that stops each arm generates, with 95 % intervals over the seeds."""
    spans, found = ["first epoch", "last half", "all"], []
    base = rows[rows["arm"] == STOP].set_index(["gpus", "seed"])[spans]
    for (gpus, arm), own in rows.groupby(["gpus", "arm"], sort=False):
        own = own.set_index(["gpus", "seed"])
        row: dict[str, object] = {"gpus": gpus, "arm": arm}
        for span in spans:
            logs = np.log(base.loc[own.index, span] / own[span])
            row[span] = interval(np.exp(logs.mean()), np.exp(half_of(logs)), multiplied=True)
        row["tokens wasted, %"] = f"{100 * own['late_wasted_share'].mean():.2f}"
        bias = 100 * (own["late_length_ratio"] - 1)
        row["length, %"] = interval(bias.mean(), half_of(bias))
        found.append(row)
    return pd.DataFrame(found)


def half_of(values: pd.Series) -> float:
    """Half of the 95 % interval of a mean."""
    from scipy import stats

    return float(stats.t.ppf(0.975, len(values) - 1) * values.sem()) if len(values) > 1 else math.nan


def interval(mean: float, half: float, multiplied: bool = False) -> str:
    low, high = (mean / half, mean * half) if multiplied else (mean - half, mean + half)
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def cell(
    samples: tuple[int, int], gpus: int, slots: int, cap: int, seed: int = 0, epochs: int = 3
) -> dict[str, float]:
    """Generation against plain steps, of each method from the first step on; epochs of ten steps."""
    prompts, size = samples
    costs = dataclasses.replace(CostModel.load(ENGINES / "h100-7b.json"), max_running=slots)
    found = {}
    for word in ("", "+tail:stop", "+tail:sort", "+tail"):
        source = Epochs(LENGTHS._replace(cap=cap), 10 * prompts, size, seed)
        settings = {"batch_size": prompts, "n_samples_per_prompt": size, "prompt_tokens": 256, "seed": seed}
        arguments = default_arguments(**settings, dynamic_sampling=False)
        run = train(parse_policy(f"fixed:{size}{word}"), gpus, source, costs, arguments)
        found[word or "plain"] = sum(run.step()["generation_seconds"] for _ in range(10 * epochs))
    row = {"prompts": prompts, "responses": size, "gpus": gpus, "slots": slots, "cap": cap}
    gains = {name: found["plain"] / seconds for name, seconds in found.items()}
    best = max(gain for name, gain in gains.items() if name != "+tail")
    return row | gains | {"of the best": gains["+tail"] / best}


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("part", choices=["gains", "sizes"], nargs="?", default="gains")
    parser.add_argument("--gpus", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--samples", nargs="+", default=["64x16"], help="of sizes: prompts x responses of a step")
    parser.add_argument("--slots", type=int, nargs="+", default=[128, 512], help="of sizes")
    parser.add_argument("--caps", type=int, nargs="+", default=[8192, 32768], help="of sizes")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.part == "sizes":
        shapes = [tuple(map(int, word.split("x"))) for word in arguments.samples]
        cells = [*itertools.product(shapes, arguments.gpus, arguments.slots, arguments.caps)]
        rows = pd.DataFrame(cell(*each) for each in track(cells, "simulating"))
        rows.to_csv(arguments.output / "sizes.csv", index=False, float_format="%.4g")
        show("generation against plain steps", rows.round(3))
        return
    rows = measure(arguments.gpus, arguments.seeds)
    rows.to_csv(arguments.output / "runs.csv", index=False, float_format="%.6g")
    show("generation against tail batching that stops", against_stop(rows))
