"""eval/on_gpu.py in its dry run, as a machine would start it that has PyTorch and Triton alone."""

import os
import subprocess
import sys
import time
from pathlib import Path

import on_gpu
import pandas as pd
import pytest
import torch
from cpu_stack import ROOT


def test_the_dry_run_passes_without_openrlhf_and_writes_no_figures(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, ROOT / "eval/on_gpu.py", "--dry-run", "--results", tmp_path]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "1 passed" in run.stdout and "GPU: not measured" in run.stdout and "in buckets, on a CPU" in run.stdout
    assert "bash train_scripts/smoke.sh dapo_qwen2.5_7b.sh" in run.stdout and run.stdout.count(": done, ") == 5
    assert not list(tmp_path.rglob("*.csv"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    run = subprocess.run([sys.executable, ROOT / "eval/on_gpu.py"], capture_output=True, text=True)
    assert run.returncode == 1 and "PyTorch sees no GPU here: --dry-run" in run.stderr


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """gpu(vllm=bool, wrong=part) -> what is done on a GPU, in its order; the parts are stubs, and one of them is wrong."""
    done = []

    def run(*, vllm=True, wrong=""):
        find = on_gpu.importlib.util.find_spec
        monkeypatch.setattr(on_gpu.importlib.util, "find_spec", lambda name: name == "vllm" and vllm or find(name))

        def part(name, result):
            def stub(*inputs):
                done.append(name)
                return f"{name} is wrong" if name == wrong else result

            return stub

        for name in ("run_tests", "run_packed", "run_buckets", "run_times"):
            monkeypatch.setattr(on_gpu, name, part(name, ""))
        if wrong or not vllm:
            monkeypatch.setattr(on_gpu, "run_recipe", part("run_recipe", ""))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(sys, "argv", ["on_gpu.py", "--results", str(tmp_path)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        on_gpu.main()
        return done

    run.done = done
    return run


ORDER = ["run_recipe", "run_tests", "run_packed", "run_buckets", "run_times"]


def test_what_is_most_likely_wrong_comes_first(gpu):
    assert gpu(vllm=False) == ORDER


@pytest.mark.parametrize("wrong", ORDER)
def test_a_part_that_is_wrong_ends_only_what_needs_it(gpu, wrong):
    with pytest.raises(SystemExit, match=f"{wrong} is wrong"):
        gpu(wrong=wrong)
    assert gpu.done == (ORDER[:3] if wrong == "run_tests" else ORDER)


def test_a_part_that_raises_is_named(capsys):
    assert on_gpu.tried("a part", lambda: 1 / 0) == "a part: ZeroDivisionError: division by zero"
    assert on_gpu.tried("a part", lambda: sys.exit("parity is red")) == "a part: SystemExit: parity is red"
    assert on_gpu.tried("a part", lambda: "") == ""


@pytest.fixture
def recipe(monkeypatch, tmp_path):
    """recipe(script, installed) -> what `run_recipe` says where the launch script is this bash; its words and variables."""

    def run(script, *installed):
        (tmp_path / "train_scripts").mkdir(exist_ok=True)
        (tmp_path / "train_scripts/smoke.sh").write_text(script)
        monkeypatch.setattr(on_gpu, "ROOT", tmp_path)
        monkeypatch.setattr(on_gpu.importlib.util, "find_spec", lambda name: name in installed or None)
        return on_gpu.run_recipe(dry_run=False)

    return run


def test_a_launch_script_runs_in_small_where_vllm_is(recipe, tmp_path, capfd):
    shows = 'echo "$DEVICE $STEPS $OUTPUT ${PATH%%:*} $*"'
    assert recipe(shows, "torch") == "" and "vLLM is not installed here" in capfd.readouterr().out
    assert recipe(shows, "vllm", "flash_attn") == ""
    line = f"gpu 4 {tmp_path}/build/on_gpu {os.path.dirname(sys.executable)} dapo_qwen2.5_7b.sh"
    assert capfd.readouterr().out.splitlines()[-1] == line
    assert recipe(shows, "vllm") == ""
    assert capfd.readouterr().out.splitlines()[-1] == f"{line} --ds.attn_implementation sdpa"
    assert recipe("exit 3", "vllm") == "the launch script ended with code 3"


def test_a_launch_script_that_hangs_leaves_nothing_behind(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(on_gpu, "RECIPE_SECONDS", 1)
    monkeypatch.setattr(on_gpu, "ENDING_SECONDS", 1)
    said = recipe(f"trap '' TERM; sleep 600 & echo $! >{tmp_path}/pid; wait; wait", "vllm")
    assert said == "the launch script has not ended in 1 s"
    status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("the training still runs")


@pytest.mark.parametrize("name", ["buckets", "packed"])
def test_a_gradient_that_differs_is_found(device, monkeypatch, name):
    from lib.benchmarks import buckets, packed

    if name == "buckets":
        train = buckets.PolicyStep.train
        monkeypatch.setattr(
            buckets.PolicyStep, "train", lambda *inputs: train(*inputs) + 1
        )  # a token that is not there
        module = buckets
    else:
        right = packed.Policy.log_probs
        monkeypatch.setattr(
            packed.Policy, "log_probs", lambda *inputs: right(*inputs) * (1 + 0.1 * torch.is_grad_enabled())
        )
        module = packed
    table = module.measure(device, module.CPU, repeats=1)
    assert (table.difference[1:] > module.CPU.tolerance).any() and table.difference[0] == 0


def test_packed_samples_see_only_themselves(device):
    from lib.benchmarks import packed

    torch.manual_seed(0)
    policy, (pack, *_) = packed.Policy(packed.CPU).to(device), packed.draw_packs(packed.CPU, device)
    assert len(pack.lengths) > 1
    together = policy.log_probs(pack.tokens_T, pack.lengths).split(pack.lengths)
    for own, tokens_T in zip(together, pack.tokens_T.split(pack.lengths)):
        torch.testing.assert_close(own[:-1], policy.log_probs(tokens_T, [len(tokens_T)])[:-1], rtol=1e-4, atol=1e-5)
    ends = torch.tensor(pack.lengths).cumsum(0) - 1
    assert (pack.advantages_T[ends] == 0).all() and (pack.advantages_T != 0).sum() == len(pack.tokens_T) - len(ends)


@pytest.mark.parametrize("difference", [0.0, 1.0, float("nan")])
@pytest.mark.parametrize("name", ["buckets", "packed"])
def test_a_step_whose_gradient_differs_leaves_no_table(name, difference, monkeypatch, tmp_path):
    from lib.benchmarks import buckets, packed

    table = pd.DataFrame({"way": [1, 2], "difference": [0.0, difference], "seconds": [1.0, 1.0]})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    module = {"buckets": buckets, "packed": packed}[name]
    monkeypatch.setattr(module, "measure", lambda device, shape, repeats: table)
    said = getattr(on_gpu, f"run_{name}")(tmp_path, False)
    assert ("differs by more than" in said) == (difference != 0)
    assert (tmp_path / name / "A-GPU.csv").exists() == (difference == 0)
