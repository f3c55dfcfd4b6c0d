"""Dynamic sampling of unpatched OpenRLHF and of this project, on data with and without a signal.

It trains the Countdown model on the CPU stack with a learning rate of 0, 16 groups of 8 a step, one pass over the
prompts. The prompts are all hard (score 0), all easy (1), mixed (hard, easy, always 0.5, Countdown, a quarter each) or
Countdown alone. It needs a folder that train_scripts/quickstart.sh has made, and writes table.csv and
dynamic_sampling.png. Started again, it keeps the runs that are finished.
"""

import itertools
import json
import random
import time
from pathlib import Path

import pandas as pd
from lib.paths import QUICKSTART, ROOT, check_task, study_flags
from lib.plots import plt, save
from lib.run_logs.read import read_run
from lib.runs import once, run_logged, state_of, train_command
from lib.tables import show

SIZE = 8  # n_samples_per_prompt of train.sh
DATA = {"hard": ["hard"], "easy": ["easy"], "mixed": ["hard", "easy", "format", "real"], "real": ["real"]}
FILTER = ["--algo.dynamic_filtering_enable"]
VARIANTS = {
    "unpatched": ("cpu-base", FILTER),
    "patched": ("cpu-patched", FILTER),
    "patched, surplus kept": ("cpu-patched", [*FILTER, "--algo.dynamic_filtering_surplus", "keep"]),
}
PROMPTS, RUNS = 320, ROOT / "build/dynamic_sampling"


def write_prompts(task: Path, kinds: list[str], count: int, path: Path) -> None:
    """`count` prompts of `task`, labelled with the kinds in equal shares and a fixed random order."""
    lines = (task / "data" / "train.jsonl").read_text().splitlines()[:count]
    rows = [json.loads(line) for line in lines]
    order = [kinds[i % len(kinds)] for i in range(len(rows))]
    random.Random(0).shuffle(order)
    rows = [{**row, "label": f"{kind} {row['label']}"} for kind, row in zip(order, rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(task: Path, output: Path, data: str, variant: str) -> tuple[int, int]:
    """Train once; train.log, rewards.log and tensorboard/ stand in `output`.

    Returns:
        Exit code and seconds.

    Raises:
        ValueError: the run failed for another reason than data without a signal.
    """
    tree, flags = VARIANTS[variant]

    def train() -> tuple[int, int]:
        write_prompts(task, DATA[data], PROMPTS, output / "prompts.jsonl")
        (output / "rewards.log").write_text("")
        command = train_command(tree, task, output, flags)
        command += ["--data.prompt_dataset", output / "prompts.jsonl", "--actor.adam.lr", "0"]
        command += ["--reward.remote_url", ROOT / "eval/lib/synthetic_reward.py"]
        started = time.monotonic()
        code = run_logged(command, output / "train.log", REWARD_LOG=str(output / "rewards.log"))
        reached_cap = "RuntimeError: --algo.dynamic_filtering_max_gen_batches" in (output / "train.log").read_text()
        if code and not reached_cap:
            raise ValueError(f"a run failed with exit code {code}, see {output / 'train.log'}")
        return code, round(time.monotonic() - started)

    code, seconds = once(output, [PROMPTS, tree, str(task.resolve()), *flags, state_of(tree, task)], train)
    return code, seconds


def summary(output: Path, data: str, variant: str, code: int, seconds: int) -> dict:
    """One row of the table.

    Groups with a signal are those whose scores differ in the reward's log. Unpatched OpenRLHF rolls every prompt out
    once and trains the groups with a mean between 0 and 1; their number is checked against the samples that it trained.
    Patched, a prompt may come twice, and the log does not say which of its groups were trained. So all trained groups are
    taken to have a signal, as the filter promises, and are checked to be at most as many as those that have one.
    """
    log = (output / "train.log").read_text(errors="replace")
    scores: dict[str, list[float]] = {}
    for line in (output / "rewards.log").read_text().splitlines():
        prompt, score, *_ = line.split()
        scores.setdefault(prompt, []).append(float(score))
    steps = read_run(output / "tensorboard" / "run") if "Global step 1:" in log else pd.DataFrame()
    trained = int(steps["rollout/num_samples"].sum()) // SIZE if len(steps) else 0
    differing = sum(min(group) != max(group) for group in scores.values())
    if variant == "unpatched":
        passed = [group for group in scores.values() if 0 < sum(group) / len(group) < 1]
        assert all(len(group) == SIZE for group in scores.values()) and len(passed) == trained, (len(passed), trained)
        signal = sum(min(group) != max(group) for group in passed)
    else:
        assert trained <= sum(len(group) // SIZE for group in scores.values() if min(group) != max(group))
        signal = trained
    column = lambda name: steps[name] if name in steps else pd.Series(dtype=float)  # noqa: E731
    share = signal / trained if trained else float("nan")
    useful = share * column("rollout/num_samples").iloc[1:].sum() / SIZE  # the first step warms vLLM up
    return {
        "data": data,
        "OpenRLHF": variant,
        "ended": "at the cap, with an error" if code else "normally",
        "steps": len(steps),
        "prompts consumed": len(scores),
        "groups stopped": int(column("dynamic_filtering/aborted").sum()),
        "samples scored": sum(map(len, scores.values())),
        "groups handed to training": trained,
        "with a signal": share,
        "pass rate logged (%)": column("dynamic_filtering_pass_rate").mean(),
        "prompts with a signal (%)": 100 * differing / len(scores),
        "rollout s a step": column("timing/generation").iloc[1:].mean(),
        "rollout s a group with a signal": column("timing/generation").iloc[1:].sum() / max(useful, 1e-9),
        "s a step": column("timing/step_total").iloc[1:].mean(),
        "s of the run": seconds,
    }


def plot(table: pd.DataFrame, path: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    names = [f"{row.data}: {row.OpenRLHF}" for row in table.itertuples()]
    colors = ["gray" if variant == "unpatched" else "C0" for variant in table["OpenRLHF"]]
    signal = (table["groups handed to training"] * table["with a signal"]).fillna(0)
    axes[0].barh(names, signal, color="C2", label="with a signal")
    axes[0].barh(names, table["groups handed to training"] - signal, left=signal, color="C3", label="all scores equal")
    axes[0].set_title("groups handed to training")
    axes[0].legend(fontsize="small")
    axes[1].barh(names, table["samples scored"], color=colors)
    axes[1].set_title("samples scored")
    axes[2].barh(names, table["rollout s a group with a signal"].fillna(0), color=colors)
    axes[2].set_title("seconds of rollout a group with a signal")
    for axis in axes:
        axis.invert_yaxis()
        axis.grid(axis="x", alpha=0.3)
    for axis in axes[1:]:
        axis.set_yticklabels([])
    save(figure, path)


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("--task", type=Path, default=QUICKSTART, help="warm-started task folder")
    arguments = parser.parse_args()
    check_task(arguments.task)
    rows = []
    for data, variant in itertools.product(DATA, VARIANTS):
        if data in ("hard", "easy") and "kept" in variant:
            continue  # nothing to keep
        folder = RUNS / f"{data}-{variant.replace(', ', '-').replace(' ', '-')}"
        rows.append(summary(folder, data, variant, *run(arguments.task.resolve(), folder, data, variant)))
        print(f"{data}, {variant}: {rows[-1]['steps']} steps, {rows[-1]['s of the run']} s")
    table = pd.DataFrame(rows)
    arguments.output.mkdir(parents=True, exist_ok=True)
    table.to_csv(arguments.output / "table.csv", index=False, float_format="%.4f")
    plot(table, arguments.output / "dynamic_sampling.png")
    show("dynamic sampling, unpatched and patched", table)
