"""What the simulator predicts of measured runs."""

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from cpu_stack import ROOT
from lib.comparison.arms import flags_of
from lib.comparison.step_arms import ARMS
from lib.paths import ENGINES, STUDIES
from lib.simulation.costs import CostModel
from lib.simulation.roofline import roofline
from studies.recipes.run import CONFIGS, RECIPES, Recipe

# --- predicted -------------------------------------------------------------------------------------------------------


RANDOM = np.random.default_rng(0)
USUAL = CostModel.load(ENGINES / "cpu-2-cores.json")
# Another machine: an engine of half the speed, and an optimizer that takes much longer.
GENERATION = ("generation_base", "decode_base", "decode_per_request", "decode_per_kv_token", "prefill_per_token")
OTHER = replace(USUAL, **{name: 2 * getattr(USUAL, name) for name in GENERATION}, train_base=0.4, sync=0.3)


@pytest.mark.parametrize("costs_of", ["unpatched", "all off"])
def test_a_machine_of_other_speed_is_predicted_from_one_arm(study, small, trace, tmp_path, costs_of):
    module = small("predict.run", STEPS=20)
    (tmp_path / "step_time.json").write_text(json.dumps({"settings": {"micro_batch_size": 16}}))
    empty = pd.DataFrame(columns=[*module.ARM, "repetition", "seconds", *module.PARTS, "rest", "optimizer"])
    empty.to_csv(tmp_path / "steps.csv", index=False)
    simulate = module.of_step_time(tmp_path, trace).simulate
    rows = []
    for algorithm in ("grpo", "dapo"):
        for arm in ARMS:
            parts = simulate(OTHER, (algorithm, 8, arm), None)
            for factor in (1, 1, 9):  # the last step is slow, and the median does not see it
                row = {"algorithm": algorithm, "size": 8, "arm": arm, "repetition": 0, "rest": 0.1 * factor}
                row |= {name: factor * parts[name] for name in ("seconds", *module.PARTS)}
                row["sync"] -= 0.1 * factor  # 0.1 s of a step are in no part
                rows.append(row | {"optimizer": 0.4 * factor})
    pd.DataFrame(rows).to_csv(tmp_path / "steps.csv", index=False)
    study("predict", "--results", tmp_path, "--trace", trace, "--costs_of", costs_of)
    table = pd.read_csv(tmp_path / "predicted.csv")
    assert table["arm"].tolist() == ARMS * 2 and table["error_percent"].abs().max() < 1e-6
    assert (tmp_path / "predicted.md").read_text().count("costs are from here") == 2
    with pytest.raises(SystemExit, match="--costs_of none was not run for grpo at 8: unpatched, all on"):
        study("predict", "--results", tmp_path, "--trace", trace, "--costs_of", "none")


@pytest.mark.parametrize("name", ["step_time.json", "settings.json"])
def test_packed_steps_are_not_predicted_as_padded_ones(study, trace, tmp_path, name):
    settings = {"shape": "gpu", "micro_batch_size": 16}
    (tmp_path / name).write_text(json.dumps({"settings": settings} if name == "step_time.json" else settings))
    (tmp_path / "steps.csv").write_text("algorithm\n")
    with pytest.raises(SystemExit, match="--results has steps of --shape gpu, and those of padded samples alone"):
        study("predict", "--results", tmp_path, "--trace", trace)


POLICIES = ["unpatched:8", "unpatched:16@prompts", "fixed:8+tail:1", "fixed:8+shuffled", "sagc"]


def test_policies_of_a_comparison_are_predicted_with_its_settings(study, small, trace, tmp_path, monkeypatch):
    module = small("predict.run", REPETITIONS=2)
    settings = {"max_straggler_rate": 0.3, "straggler_ratio": 2.5, "tradeoff": 2.0}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    columns = ["algorithm", "policy", "seed", "step", *module.SECONDS]
    pd.DataFrame(columns=columns).to_csv(tmp_path / "steps.csv", index=False)
    simulate, rows = module.of_comparison(tmp_path, trace).simulate, []
    trained = {name: 2 * getattr(USUAL, name) for name in ("train_base", "train_per_token")}
    costs = replace(OTHER, **trained)  # logs do not say what the optimizer takes
    for policy in POLICIES:
        parts = simulate(costs, ("grpo", policy), {"steps": 4})
        for step in range(5):
            row = {"algorithm": "grpo", "policy": policy, "seed": 0, "step": step}
            rows.append(row | {name: parts[name] * (100 if step == 0 else 1) for name in module.PARTS})
    frame = pd.DataFrame(rows).reindex(columns=columns).fillna(0.0)
    slow = frame["policy"] == "fixed:8+shuffled"
    frame.loc[slow, module.SECONDS] *= 1.25
    frame.to_csv(tmp_path / "steps.csv", index=False)
    study("predict", "--results", tmp_path, "--trace", trace)
    table = pd.read_csv(tmp_path / "predicted.csv").set_index("policy")
    assert table.loc["fixed:8+shuffled", "error_percent"] == pytest.approx(-20)
    assert table.drop("fixed:8+shuffled")["error_percent"].abs().max() < 1e-6 and (table["steps"] == 4).all()
    for policy in POLICIES:  # prompts and samples of a simulated first step are those of the measured one
        prompts, size = module.first_step_of(module.parse_policy(policy))
        words = flags_of(policy, "grpo", 0, settings)[1]
        measured = [words[words.index(f"--rollout.{name}") + 1] for name in ("batch_size", "n_samples_per_prompt")]
        assert measured == [str(prompts), str(size)]
    with pytest.raises(SystemExit, match="predict: --trace is required, as .*settings.json names no task"):
        study("predict", "--results", tmp_path)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(SystemExit, match="predict: there is no .*settings.json: run eval/compare.py or the study"):
        study("predict", "--results", tmp_path, "--trace", trace)


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_recipes_are_predicted_with_more_slots_and_graphs(study, small):
    recipe = Recipe("Qwen2.5-7B", 2, 1, 64, 8, 2048, 1792, 128)
    small("recipes.run", RECIPES={"small.sh": recipe}, STEPS=1, SEEDS=(0,))
    folder = study("recipes")
    rows = pd.read_csv(folder / "predicted.csv").set_index("launch ms")
    assert rows.index.tolist() == [18, 10] and (rows["slots"] == 512).all()
    for one in ("more slots", "graphs"):  # 256 rollouts an engine, of which 128 wait
        assert (rows["as shipped"] <= rows[one]).all() and (rows[one] < rows["OpenRLHF's settings"]).all()
    times = rows["OpenRLHF's settings"] / rows["as shipped"]
    assert rows["times as fast"].tolist() == pytest.approx(times.tolist(), rel=1e-3) and times[18] > times[10] > 1
    engines = pd.read_csv(folder / "tensor_parallel.csv").iloc[0]
    assert engines["TP 1"] == pytest.approx(rows["as shipped"][10], rel=1e-3)
    assert pd.isna(engines["TP 4"])  # of two GPUs
    small("recipes.run", EPISODES=1, EPISODE=1)
    batched = pd.read_csv(study("recipes", "tail_batching") / "tail_batching.csv").iloc[0]
    assert (batched.drop(["script", "tokens in vain"]).astype(float) > 0).all() and batched["tokens in vain"] >= 0


def test_the_costs_of_a_recipe_are_those_of_the_shipped_engine():
    """Of one H100 with a 7B model, within the precision of its rounded numbers; what is left for work is newer."""
    made, shipped = (
        vars(costs)
        for costs in (roofline(CONFIGS["Qwen2.5-7B"], 1, 0.6, 128), CostModel.load(ENGINES / "h100-7b.json"))
    )
    others = {"kv_limit"}
    assert {name: made[name] for name in made.keys() - others} == pytest.approx(
        {name: shipped[name] for name in shipped.keys() - others}, rel=0.005
    )


def test_scripts_and_pages_have_the_kept_prediction():
    rows = pd.read_csv(STUDIES / "recipes/predicted.csv").groupby("script", sort=False)
    assert [*rows.groups] == [*RECIPES]
    page, openrlhf = (ROOT / "docs/launch_scripts.md").read_text(), "OpenRLHF's settings"
    for script, own in rows:
        seconds = [
            f"{round(own[name].iloc[row]):,}" for name, row in (("as shipped", 0), (openrlhf, 1), (openrlhf, 0))
        ]
        head = " ".join((ROOT / "train_scripts" / script).read_text().partition("set -euo")[0].split("\n# "))
        words = [f"{seconds[0]} s a step", f"{seconds[1]} s where", f"{seconds[2]} s where"]
        assert all(word in head.replace(" # ", " ") for word in words), script
        times = " and ".join(f"{(own[openrlhf] / own['as shipped']).iloc[row]:.2f}" for row in (1, 0))
        cells = f"| {seconds[1]} | {seconds[2]} | {seconds[0]} | {times} |"
        assert cells in page, script


# --- what others have published --------------------------------------------------------------------------------------


def test_published_seconds_stand_beside_predicted_ones(study, small, tmp_path, capsys):
    module = small("published.run", FOLDER=tmp_path, STEPS=1, SEEDS=(0,))
    cells = pd.read_csv(STUDIES / "published/published.csv")
    parts = cells.groupby("part").head(1).assign(prompts=4, samples=4, gpus=16, policy="fixed:4", trainers=0)
    apart = parts[parts["part"] == "step"].assign(trainers=8)
    pd.concat([parts, apart]).to_csv(tmp_path / "published.csv", index=False)
    table = pd.read_csv(study("published") / "predicted.csv")
    assert len(table) == len(parts) + 1 and (table[["wide", "narrow"]] > 0).all(axis=None)
    errors = 100 * (table["wide"] / table["seconds"] - 1)
    assert table["error_percent"].tolist() == pytest.approx(errors.tolist(), abs=0.1)
    printed = capsys.readouterr().out
    assert "the mean is from here" in printed and f"Of {len(table) - 1} cells" in printed
    lengths, *_ = (module.Cell(**{name: row[name] for name in module.Cell._fields}) for _, row in cells.iterrows())
    drawn = lengths.lengths("wide").draw_rollouts([*lengths.lengths("wide").draw_prompts(4000, RANDOM)], 8, RANDOM)[0]
    assert drawn.mean() == pytest.approx(lengths.mean_tokens, rel=0.05) and drawn.max() <= lengths.cap


def test_the_page_has_the_kept_predictions_of_all_published_cells():
    module = import_module("studies.published.run")
    cells, kept = (pd.read_csv(STUDIES / f"published/{name}.csv") for name in ("published", "predicted"))
    pd.testing.assert_frame_equal(kept[cells.columns], cells)
    assert module.report(kept.fillna({"policy": ""})) in (STUDIES / "published/README.md").read_text()
