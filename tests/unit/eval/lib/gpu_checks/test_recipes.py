"""What the output of a launch script says of synced weights, a killed engine and what it has left; the runs are made up."""

import os
import subprocess
import sys
import time

import pytest
from lib.gpu_checks import recipes, runs
from lib.gpu_checks.outcomes import FAIL, PASS, Node, NotHere
from lib.gpu_checks.runs import Ended

DEATH = "openrlhf_sagc: RolloutRayActor (process 7 on 127.0.0.1) has died: killed; its log says why, start again\n"
FREED = "(EngineCore pid=7) INFO 11-29 09:55:31 [gpu_worker.py:266] Sleep mode freed 61.5 GiB memory, 2 GiB memory is still in use.\n"


def step(number, **metrics):
    return f"(GroupTrainer pid=1) INFO 11-29 09:55:31 trainer.py:1] Global step {number}: {metrics}\n"


def output(*pairs, start=1, **more):
    """Steps with these pairs of the engines' and the policy's distance."""
    return "".join(step(start + at, vllm_kl=own, kl=kl, **more) for at, (own, kl) in enumerate(pairs))


def ended(text, code=0, left=(), at=0.0):
    return Ended(code, text, list(left), at)


RIGHT = [(1e-4, 0.0), (-3e-4, 0.09), (5e-4, 0.14), (9e-4, 0.2)]


def test_engines_that_follow_the_policy_pass_by_how_closely_they_do():
    outcome = recipes.weights_of(ended(output(*RIGHT)))
    assert outcome.status == PASS and outcome.number == pytest.approx(9e-4 / 0.2)
    assert outcome.details["steps"] == 4 and outcome.details["kl"] == 0.2


def test_a_step_of_a_policy_that_has_hardly_moved_says_nothing():
    outcome = recipes.weights_of(ended(output((0.0, 0.0), (1e-3, 8e-3), (9e-4, 0.1), (1e-4, 0.2))))
    assert outcome.status == PASS and outcome.number == pytest.approx(9e-3)


@pytest.mark.parametrize(
    "pairs, unit",
    [
        ([(0.0, 0.0), (0.09, 0.09), (0.14, 0.14), (0.2, 0.2)], recipes.MOVE),  # weights that are never synced
        ([(0.0, 0.0), (0.09, 0.09), (0.02, 0.2), (0.03, 0.4)], recipes.MOVE),  # or a step late
        ([(0.0, 0.0), (float("nan"), 0.1), (0.0, 0.2)], recipes.MOVE),
        ([(0.0, 0.0), (0.0, 0.001), (0.0, 0.002)], "nats a token, which the policy has moved at most"),
        ([(0.0, 0.0)], "steps"),
        ([], "steps"),
    ],
)
def test_engines_that_do_not_follow_it_and_runs_that_would_not_show_it_fail(pairs, unit):
    outcome = recipes.weights_of(ended(output(*pairs)))
    assert outcome.status == FAIL and outcome.unit == unit


def test_older_rollouts_are_allowed_until_the_policy_stands_still():
    late = [(0.0, 0.0), (0.09, 0.09), (0.05, 0.2), (0.001, 0.21)]
    assert recipes.weights_of(ended(output(*late)), last_alone=True).status == PASS
    assert recipes.weights_of(ended(output(*late[:-1])), last_alone=True).status == FAIL


def test_a_script_that_ends_with_an_error_says_why():
    text = "(Actor pid=3) ImportError: no attention\nlater\n"
    outcome = recipes.weights_of(ended(text + output(*RIGHT), code=2))
    assert (
        outcome.status == FAIL and outcome.reason == "the launch script ended with code 2: ImportError: no attention"
    )


@pytest.fixture
def of_a_run(monkeypatch, tmp_path):
    """of_a_run(check, run, dry_run): a check's outcome, whose launch script ends as this run, and what it was called with."""
    calls = []
    monkeypatch.setattr(recipes, "need_stack", lambda node: None)

    def judge(check, run, dry_run=False):
        def train(node, name, *words, watch=None, **variables):
            calls.append((name, words, variables))
            if watch:
                watch(run.output, "")
            return run

        monkeypatch.setattr(recipes, "train", train)
        return check(Node(tmp_path, dry_run))

    judge.calls = calls
    return judge


def test_on_gpus_sleep_has_to_free_memory_and_the_kernel_to_be_taken(of_a_run):
    kernel = output(*RIGHT, advantage_kernel=1.0)
    outcome = of_a_run(recipes.recipe, ended(FREED + kernel))
    assert outcome.status == PASS and outcome.reason == "a sleeping engine frees 61.5 GiB"
    (call,) = of_a_run.calls
    assert call[1][:2] == ("smoke.sh", "dapo_qwen2.5_7b.sh") and "--ds.attn_implementation" not in call[1]
    assert of_a_run(recipes.recipe, ended(kernel)).unit.startswith("GiB freed")
    closed_form = of_a_run(recipes.recipe, ended(FREED + output(*RIGHT, advantage_kernel=0.0)))
    assert closed_form.status == FAIL and closed_form.number == 0
    assert of_a_run(recipes.recipe, ended(output(*RIGHT, advantage_kernel=0.0)), dry_run=True).status == PASS


@pytest.fixture
def killed(of_a_run, monkeypatch):
    """killed(run, used) -> the outcome of check 6, whose engine is killed at second 100, and the processes that were killed."""
    victims = []

    def judge(run, used=0, engine=7):
        monkeypatch.setattr(recipes, "engine_process", lambda output: engine)
        monkeypatch.setattr(recipes.os, "kill", lambda process, number: victims.append(process))
        monkeypatch.setattr(recipes.time, "monotonic", lambda: 100.0)
        monkeypatch.setattr(recipes, "busy_gpus", lambda: used)
        return of_a_run(recipes.resume_and_kill, run)

    judge.victims, judge.calls = victims, of_a_run.calls
    return judge


def test_a_killed_engine_ends_the_resumed_run_in_a_line_and_leaves_nothing(killed):
    resumed = output((0.0, 0.3), start=5)
    outcome = killed(ended(resumed + DEATH, code=1, at=131.0))
    assert outcome.status == PASS and outcome.number == 31 and outcome.bound == "<= 60" and killed.victims == [7]
    ((name, words, _),) = killed.calls
    assert name == "recipe" and "--ckpt.load_enable" in words  # the folder of check 5
    assert killed(ended(resumed + DEATH, code=1, at=170.0)).status == FAIL
    assert killed(ended(resumed, code=1, at=131.0)).unit == "lines that name the dead process"
    assert killed(ended(resumed + DEATH, code=1, left=[8, 9], at=131.0)).number == 2
    assert killed(ended(resumed + DEATH, code=1, at=131.0), used=1).unit == "GPUs are in use afterwards"
    assert "began anew" in killed(ended(output((0.0, 0.0)) + DEATH, code=1, at=131.0)).reason
    assert "before its engine was killed" in killed(ended("", code=2), engine=0).reason


def test_only_a_younger_process_is_taken_for_the_engine():
    """A line of the output is no reason to kill one that this check has not started."""
    text = "(RolloutRayActor pid={0}) INFO\n\x1b[36m(RolloutRayActor pid={0})\x1b[0m (EngineCore pid={1}) INFO\n"
    with subprocess.Popen(["sleep", "600"]) as actor, subprocess.Popen(["sleep", "600"]) as core:
        time.sleep(0.05)
        assert recipes.engine_process(text.format(actor.pid, core.pid)) == core.pid
        assert recipes.engine_process(text.format(actor.pid, 1)) == actor.pid
        assert recipes.engine_process(f"a response: (EngineCore pid={core.pid})") == 0
        actor.kill(), core.kill()
    assert recipes.engine_process(text.format(1, os.getpid())) == recipes.engine_process(text.format(core.pid, 1)) == 0


def test_ranks_have_to_get_unequal_numbers(of_a_run, monkeypatch, tmp_path):
    monkeypatch.setattr(recipes, "model", lambda node, name, **changes: tmp_path)
    even = output(*RIGHT, **{"rollout/num_samples": 24.0})
    assert of_a_run(recipes.two_ranks, ended(even)).unit.startswith("steps gave the ranks")
    odd = even + step(5, vllm_kl=0.001, kl=0.3, **{"rollout/num_samples": 15.0})
    assert of_a_run(recipes.two_ranks, ended(odd)).status == PASS
    assert "--vllm.tensor_parallel_size" in of_a_run.calls[-1][1]


def test_without_vllm_no_script_is_tried(monkeypatch, tmp_path):
    monkeypatch.setattr(runs.importlib.util, "find_spec", lambda name: None)
    for check in (recipes.recipe, recipes.resume_and_kill, recipes.two_ranks, recipes.asynchronous, recipes.one_call):
        with pytest.raises(NotHere, match="vLLM is not installed"):
            check(Node(tmp_path))


@pytest.fixture
def script(monkeypatch, tmp_path):
    """script(text, **settings) -> how train_scripts/smoke.sh of this text has ended."""
    (tmp_path / "train_scripts").mkdir()
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr("lib.gpu_checks.processes.ROOT", tmp_path)

    def run(text, **settings):
        (tmp_path / "train_scripts/smoke.sh").write_text(text)
        return runs.train(Node(tmp_path), "recipe", "smoke.sh", "a.sh", "--flag", **settings)

    return run


def test_a_script_runs_with_this_python_and_in_a_folder_of_its_own(script, tmp_path, monkeypatch):
    monkeypatch.delenv("TASK", raising=False)
    (tmp_path / "recipe").mkdir()
    shows = 'ls "$OUTPUT" 2>/dev/null; echo "$DEVICE $STEPS $OUTPUT $TASK ${PATH%%:*} $*"; exit 3'
    run = script(shows, STEPS=8)
    folder = f"{tmp_path}/recipe {tmp_path}/task {os.path.dirname(sys.executable)}"
    assert (run.code, run.output) == (3, f"gpu 8 {folder} a.sh --flag\n") and not run.left
    assert not (tmp_path / "recipe").exists()


def test_a_run_is_ended_once_its_watcher_has_seen_enough(script):
    run = script("echo seen; sleep 600", watch=lambda output, mark: "seen" in output)
    assert run.code is None and run.output == "seen\n"


def test_processes_that_a_run_leaves_are_counted(script, monkeypatch):
    monkeypatch.setattr(runs, "LEAVING", 1.0)
    run = script("setsid sleep 600 & exit 0")
    assert run.code == 0 and len(run.left) == 1
