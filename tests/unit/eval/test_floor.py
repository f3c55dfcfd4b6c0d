"""The study of a step's floor with other runs in their place: its commands, the readers of logs, the table."""

import json
from importlib import import_module
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from comparison_runs import scalars, write_run
from cpu_stack import ROOT
from lib.comparison.group_size_runs import WARM_UP
from lib.machine import data_type
from lib.run_logs.console import STEP_END
from studies.floor import arms, step_log

SECONDS = {"unpatched": 8.0, "defaults": 4.0, "compiled": 5.0, "trl": 6.0, "floor": 2.0}  # of a step
TINY, COMPUTING = arms.SHAPES.values()
PAUSE = 0.5  # in the first step that counts
PARTS = {"generation": 1.0, "experience": 0.125, "training": 0.5, "sync": 0.0625}


def write_steps(arm, folder):
    """What a run of an arm leaves; returns its pauses."""
    times = [1795830000 + SECONDS[arm] * n for n in range(WARM_UP + 2)]
    times[WARM_UP:] = [at + PAUSE for at in times[WARM_UP:]]
    generation = [1.0] * WARM_UP + [1.0 + PAUSE, 1.0]
    if arm in arms.ONE_PROCESS:
        work = {"samples": 128, "tokens": 128 * 15, "reward": 0.75}
        rows = [{"wall_time": at, **PARTS, "generation": seconds, **work} for at, seconds in zip(times, generation)]
        lines = [json.dumps({"step": n, **row}) + "\n" for n, row in enumerate(rows, 1)]
        (folder / "steps.jsonl").write_text("".join(lines))
    else:
        reward = {"rollout/reward_mean": 0.5}
        write_run(folder, [], [(at, scalars(part, 128.0, **reward)) for at, part in zip(times, generation)])
    return [[times[WARM_UP - 1] + 0.1, times[WARM_UP - 1] + 0.1 + PAUSE]]


@pytest.fixture
def floor(study, small, task, tmp_path):
    """floor(*words) -> (arm, words of its command) of the runs, in the order of their starts."""

    def take_turns(commands, boundary, warm_up, on_turn):
        started.extend((arm, list(map(str, words))) for arm, (words, _) in commands.items())
        return {arm: write_steps(arm, log.parent) for arm, (_, log) in commands.items()}

    started = []
    memory = SimpleNamespace(available=21e9)
    small(
        "floor.run",
        RUNS=tmp_path / "runs",
        take_turns=take_turns,
        psutil=SimpleNamespace(virtual_memory=lambda: memory),
        keep_compiled_code_by_processor=lambda: None,
        install_trl=lambda: started.append(("pip", [])),
    )

    def run(*words):
        study("floor", "--task", task, "--steps", 2, *words)
        return started

    run.memory = memory
    return run


def test_arms_are_compared_with_the_floor_and_with_the_defaults(floor, tmp_path, capsys):
    started = floor("--repetitions", 2)
    order = list(SECONDS)
    assert [arm for arm, _ in started] == ["pip", *order, *order[1:], order[0]]  # another one is first
    steps = pd.read_csv(tmp_path / "out/steps.csv")
    assert len(steps) == 2 * 2 * len(SECONDS)
    assert steps.groupby("arm", sort=False)["seconds"].unique().map(list).to_dict() == {
        arm: [seconds] for arm, seconds in SECONDS.items()
    }
    assert set(steps["generation"]) == {1.0}  # without the pause
    rest = steps.groupby("arm")["rest"].first()
    assert rest["floor"] == pytest.approx(2.0 - sum(PARTS.values())) and rest["defaults"] == pytest.approx(4.0 - 4.5)
    text = (tmp_path / "out/REPORT.md").read_text()
    assert text in capsys.readouterr().out and "14.0 to 15.0 tokens, 7.1 % apart" in text
    rows = [
        [cell.strip() for cell in line.strip("| \n").split(" | ")] for line in text.splitlines() if line[:1] == "|"
    ]
    table = {row[0]: dict(zip(rows[0], row)) for row in rows[2:]}
    assert {arm: row["times the floor"][:4] for arm, row in table.items()} == {
        "unpatched": "4.00",
        "defaults": "2.00",
        "compiled": "2.50",
        "trl": "3.00",
        "floor": "–",
    }
    assert table["trl"]["the defaults are times as fast"][:4] == "1.50"
    assert table["trl"]["compiled are times as fast"][:4] == "1.20"
    assert table["trl"]["tokens of a step's responses"] == "1920" and table["defaults"]["mean reward"] == "0.500"


def test_results_are_kept_after_every_repetition(floor, small, tmp_path):
    module, measured = small("floor.run"), []

    def measure(seed, arguments):
        if seed:
            raise ValueError("a run failed")
        measured.append(seed)
        return before(seed, arguments)

    before = module.measure
    small("floor.run", measure=measure)
    with pytest.raises(SystemExit, match="eval/studies floor: a run failed"):
        floor("--repetitions", 2, "--arms", "defaults", "floor")
    assert pd.read_csv(tmp_path / "out/steps.csv")["repetition"].unique().tolist() == [0] == measured
    assert "| floor | 1 |" in (tmp_path / "out/REPORT.md").read_text()


def test_arms_without_memory_are_refused(floor):
    floor.memory.available = 20e9
    with pytest.raises(SystemExit, match="5 --arms need 21 GB of memory at once, and 20 are free: name fewer"):
        floor()
    assert [arm for arm, _ in floor("--repetitions", 1, "--arms", "unpatched", "floor")] == ["unpatched", "floor"]


def test_a_run_that_ended_early_is_named(floor, small):
    module = small("floor.run")
    take_turns = module.take_turns

    def cut_short(commands, *words):
        pauses = take_turns(commands, *words)
        log = commands["floor"][1].parent / "steps.jsonl"
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
        return pauses

    small("floor.run", take_turns=cut_short)
    with pytest.raises(SystemExit, match=f"/floor has 1 of 2 steps after the {WARM_UP} of the warm-up"):
        floor("--repetitions", 1, "--arms", "floor")


# --- commands --------------------------------------------------------------------------------------------------------


def flags_of(words):
    return {flag: value for flag, value in zip(words, words[1:]) if flag.startswith("--")}  # later ones win


def test_all_arms_have_the_same_work(task, tmp_path):
    commands = {arm: list(map(str, arms.command_of(arm, task, 3, 17, 1, tmp_path, TINY))) for arm in arms.ARMS}
    flags = {arm: flags_of(words) for arm, words in commands.items()}
    openrlhfs = [arm for arm in arms.ARMS if arm in arms.POLICIES]
    for arm in openrlhfs:
        mine = flags[arm]
        assert (mine["--rollout.batch_size"], mine["--rollout.n_samples_per_prompt"]) == ("16", "8")
        assert (mine["--data.max_samples"], mine["--rollout.max_new_tokens"]) == (str(17 * 16), "200")
        assert (mine["--train.seed"], mine["--actor.adam.lr"], mine["--train.batch_size"]) == ("3", "0", "128")
    sizes = {arm: flags[arm]["--train.micro_batch_size"] for arm in openrlhfs}
    assert sizes == {"unpatched": "16", "defaults": "16", "compiled": "16"}
    eager = {arm for arm in openrlhfs if "--vllm.enforce_eager" in commands[arm]}
    assert eager == {"unpatched", "defaults"}
    assert [commands[arm][2] for arm in openrlhfs] == ["cpu-base", "cpu-patched", "cpu-patched"]
    for arm in arms.ONE_PROCESS:
        mine = flags[arm]
        assert (mine["--groups"], mine["--size"], mine["--steps"], mine["--seed"]) == ("16", "8", "17", "3")
        assert (mine["--max_new_tokens"], mine["--max_len"], mine["--dtype"]) == ("200", "256", data_type())
        assert "OMP_NUM_THREADS=1" in commands[arm]
        assert mine["--grader"] == flags["defaults"]["--reward.remote_url"] and mine["--model"] == str(task / "model")


def test_a_large_models_arms_have_the_same_optimizer_steps_and_threads(task, tmp_path):
    commands = {
        arm: list(map(str, arms.command_of(arm, task, 3, 4, 2, tmp_path, COMPUTING))) for arm in COMPUTING.arms
    }
    packed, trl, bare = (flags_of(words) for words in commands.values())
    assert (packed["--rollout.batch_size"], packed["--train.batch_size"], packed["--data.max_samples"]) == (
        "4",
        "16",
        "16",
    )
    assert "--ds.packing_samples" in packed and packed["--rollout.max_new_tokens"] == "64"
    assert trl == bare | {"--micro_batch_size": trl["--micro_batch_size"]}
    assert (bare["--groups"], bare["--optimizer_steps"], bare["--max_new_tokens"]) == ("4", "2", "64")
    threads = {arm: [word for word in words if "THREADS=" in word] for arm, words in commands.items()}
    assert threads == {"packed": ["CPU_THREADS=2"], "trl": ["OMP_NUM_THREADS=2"], "floor": ["OMP_NUM_THREADS=2"]}


def test_only_the_arm_of_trl_finds_trl(task, tmp_path):
    named = {
        arm
        for arm in arms.ARMS
        if str(arms.TRL_FOLDER) in " ".join(map(str, arms.command_of(arm, task, 0, 9, 2, tmp_path, TINY)))
    }
    assert named == {"trl"}


def test_trl_is_installed_once_by_its_hash(monkeypatch, tmp_path, capsys):
    def pip(words):
        started.append(list(map(str, words)))
        (folder / f"{arms.TRL_NAME}.dist-info").mkdir(parents=True)
        return SimpleNamespace(returncode=0)

    started, folder = [], tmp_path / "trl"
    monkeypatch.setattr(arms, "TRL_FOLDER", folder)
    monkeypatch.setattr(arms, "subprocess", SimpleNamespace(run=pip))
    arms.install_trl()
    arms.install_trl()
    assert len(started) == 1 and started[0][-4:] == ["--target", str(folder), "-r", str(arms.TRL_FILE)]
    assert {"--no-deps", "--require-hashes"} <= {*started[0]} and str(folder) in capsys.readouterr().err


def test_without_a_network_trl_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(arms, "TRL_FOLDER", tmp_path / "trl")
    monkeypatch.setattr(arms, "subprocess", SimpleNamespace(run=lambda words: SimpleNamespace(returncode=1)))
    with pytest.raises(ValueError, match=rf"pip could not install {arms.TRL_NAME} \(exit code 1\): leave trl out"):
        arms.install_trl()


# --- in one process --------------------------------------------------------------------------------------------------


def test_the_floors_batches_have_all_tokens_and_no_padding():
    bare = import_module("studies.floor.bare")  # with vLLM, which takes seconds
    samples = [[number] * number for number in range(1, 65)]
    batches = bare.batches_of(samples, 16)
    assert [len(batch) for batch in batches] == [16] * 4
    assert [batch.shape[1] for batch in batches] == [
        56,
        40,
        24,
        8,
    ]  # means of 64 to 49, and so on, cut to whole tokens
    assert set(batches[0].unique().tolist()) <= set(range(49, 65))


def test_a_later_optimizer_step_needs_one_more_pass_of_its_own_samples():
    bare = import_module("studies.floor.bare")
    embedding, passes = torch.nn.Embedding(9, 9), []

    def model(batch_BT):
        passes.append((batch_BT.tolist(), torch.is_grad_enabled()))
        return SimpleNamespace(logits=embedding(batch_BT))

    model.parameters = embedding.parameters
    first, second = [torch.tensor([[1, 2, 3]])], [torch.tensor([[4, 5, 6]]), torch.tensor([[7, 8, 0]])]
    before = embedding.weight.detach().clone()
    bare.train(model, torch.optim.SGD(embedding.parameters(), lr=1.0), [first, second])
    assert passes == [([[4, 5]], False), ([[7, 8]], False), ([[1, 2]], True), ([[4, 5]], True), ([[7, 8]], True)]
    moved = (embedding.weight != before).any(1)
    assert moved.nonzero().flatten().tolist() == [1, 2, 4, 5, 7, 8]


def test_a_step_has_the_seconds_of_its_parts_and_a_line_that_ends_a_turn(tmp_path, monkeypatch, capsys):
    clock = iter([10.0, 11.0, 11.5, 13.5])
    monkeypatch.setattr(step_log, "time", SimpleNamespace(perf_counter=lambda: next(clock), time=lambda: 7.0))
    log = step_log.StepLog(tmp_path / "steps.jsonl")
    log.mark("generation")
    log.mark("training")
    log.note(samples=128, tokens=1000)
    log.end()
    log.mark("generation")
    log.end()
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert rows == [
        {"step": 1, "wall_time": 7.0, "generation": 1.0, "training": 0.5, "samples": 128, "tokens": 1000},
        {"step": 2, "wall_time": 7.0, "generation": 2.0},
    ]
    assert len(STEP_END.findall(capsys.readouterr().out)) == 2


def test_prompts_are_the_first_ones_in_an_order_of_the_seed(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(50)))
    drawn = [step_log.draw_prompts(file, 32, seed) for seed in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1] and {*drawn[0]} == {*drawn[1]} == {f"p{n}" for n in range(32)}


def test_samples_are_rewarded_by_the_tasks_own_function():
    grade = step_log.load_grader(ROOT / "train_scripts/countdown/reward.py")
    prompt = "use 5 6 11 to make 22 :"
    right = "5 +6 = 11 , 5 -6 = -1 , 5 +11 = 16 , 5 -11 = -6 , 6 +11 = 17 , 6 -11 = -5 ; 22 -5 = 17 -6 = 11 -11 = 0 !"
    assert grade([prompt] * 3, [right, f"{right} <eos>", right.replace("11 -11", "11 -10")]) == [1.0, 1.0, 0.0]
