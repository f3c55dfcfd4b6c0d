"""The command: which trainer a run starts, by its flags, and of what."""

import json
import runpy
import signal
import subprocess
import sys
import time
import zipfile
from unittest import mock

import pytest
import torch
from cpu_stack import ROOT
from train_command import FLAGS
from up_to_ray import reward_file

from openrlhf_sagc.driver.trace import HEADER, RunTrace
from openrlhf_sagc.driver.trainers import GroupTrainer, GroupTrainerAsync
from openrlhf_sagc.run.notes import NOTE, write_notes

ASYNC = "--train.async_enable"


@pytest.mark.parametrize(
    "flags, cls",
    [
        ([], GroupTrainer),
        ([ASYNC], GroupTrainerAsync),
        (["--algo.dynamic_filtering_enable"], GroupTrainer),
        (["--rollout.sagc.enable", "--rollout.sagc.group_sizes", "8"], GroupTrainer),  # the switch of earlier versions
        (["--rollout.tail_batching.enable"], GroupTrainer),
        (["--rollout.sagc.enable", ASYNC], GroupTrainerAsync),
        (["--rollout.tail_batching.enable", ASYNC], GroupTrainerAsync),
    ],
)
def test_the_command_is_the_switch(start_run, flags, cls):
    started = start_run(*flags)
    assert started.cls is cls
    controls = "--rollout.sagc.enable" in flags and len(flags) == 2
    assert started.args.rollout.sagc.group_sizes == ([4, 8, 16, 32] if controls else [8])


@pytest.mark.parametrize(
    "module, has",
    [("openrlhf_sagc", True), ("openrlhf_sagc.off", False), ("openrlhf.cli.train_ppo_ray", False)],
)
def test_flags_are_in_the_help_of_the_schedulers_command_alone(run_in_tree, module, has):
    shown = run_in_tree("cpu-patched", "-m", module, "--help")
    assert "--rollout.n_samples_per_prompt" in shown and ("--rollout.sagc.enable" in shown) == has
    assert ("Straggler-Aware Group Control" in shown) == has


@pytest.fixture
def run_main(tmp_path, monkeypatch):
    """run_main(train, *flags): the command with its output in tmp_path, where `train` stands for OpenRLHF's training."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "1"}\n' * 200)
    flags = {
        **FLAGS,
        "--data.prompt_dataset": prompts,
        "--reward.remote_url": reward_file(tmp_path),
        "--ckpt.output_dir": tmp_path,
        "--ckpt.path": tmp_path / "saved",
    }
    words = [str(word) for pair in flags.items() for word in pair]

    def run(train, *more):
        monkeypatch.setattr("sys.argv", ["openrlhf_sagc", *words, *more])
        monkeypatch.setattr("openrlhf.cli.train_ppo_ray.train", train)
        monkeypatch.setattr("ray.init", None)
        runpy.run_module("openrlhf_sagc", run_name="__main__")

    return run


def test_a_run_holds_its_folders_while_it_trains(run_main, tmp_path):
    def train(args, trainer_cls):
        with pytest.raises(SystemExit, match=f"--ckpt.output_dir {tmp_path} is in use by another run, process"):
            run_main(mock.Mock())

    training = mock.Mock()
    run_main(mock.Mock(side_effect=train))
    run_main(training)
    training.assert_called_once()


def test_a_resumed_run_chooses_its_checkpoint(run_main, tmp_path):
    checkpoint = tmp_path / "saved" / "_actor" / "global_step1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "metric.json").write_text("{}")
    training, resumed = mock.Mock(), ["--ckpt.load_enable"]
    with pytest.raises(SystemExit, match="--ckpt.load_enable finds no complete checkpoint in .*saved/_actor"):
        run_main(training, *resumed)
    run_main(training)
    training.assert_called_once()


SAVES = ["--ckpt.save_steps", "1"]


@pytest.fixture
def saved(tmp_path):
    """A finished run's model and whole checkpoint, and the rows of its trace."""
    checkpoint = tmp_path / "saved" / "_actor" / "global_step1"
    checkpoint.mkdir(parents=True)
    for name in ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        with zipfile.ZipFile(checkpoint / name, "w"):
            pass
    (checkpoint / "metric.json").write_text("{}")
    (checkpoint.parent / "latest").write_text("global_step1")
    (tmp_path / "model.safetensors").write_text("weights")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "run.csv").write_bytes(HEADER + b"a,0-0,7,1,0,1,4,1,0\n" * 1000)
    return checkpoint


def test_a_run_that_begins_anew_keeps_what_was_saved(run_main, tmp_path, saved):
    def train(args, _):
        assert not (tmp_path / "model.safetensors").exists() and not saved.exists()
        assert args.data.described["rows"] == 200

    run_main(mock.Mock(side_effect=train), *SAVES)
    assert (tmp_path / "earlier-1/model.safetensors").read_text() == "weights"
    assert (tmp_path / "saved/earlier-1/_actor/global_step1/metric.json").exists()


@pytest.mark.parametrize(
    "flags, line",
    [
        ([*SAVES, "--rollout.trace", "{}/run.csv"], "--rollout.trace .*run.csv has the rows of another run"),
        ([*SAVES, "--ckpt.load_enable", "--rollout.trace", "{}/prompts.jsonl"], "is not the trace of a run"),
        (
            [*SAVES, "--rollout.sagc.enable", "--rollout.sagc.group_sizes", "3"],
            "--rollout.sagc.group_sizes 3 do not hold",
        ),
        ([*SAVES, "--data.label_key", "answer"], "--data.label_key answer: no such column in"),
        ([*SAVES, "--actor.model_name_or_path", "{}"], "is the folder of --actor.model_name_or_path too"),
        (
            [*SAVES, "--ckpt.load_enable", "--actor.num_gpus_per_node", "2"],
            "was saved by 1 ranks|lacks bf16_zero_pp_rank_1",
        ),
    ],
)
def test_a_run_that_is_refused_has_moved_nothing(run_main, tmp_path, saved, flags, line):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    training = mock.Mock()
    with pytest.raises(SystemExit, match=line) as ended:
        run_main(training, *(flag.format(tmp_path) for flag in flags))
    assert "\n" not in str(ended.value) and not training.called
    assert {path: path.read_bytes() for path in before} == before


def test_a_mistyped_path_is_refused_where_a_model_is(run_main, tmp_path, saved):
    """And where there is none the run begins anew, see below."""
    with pytest.raises(SystemExit) as refused:
        run_main(mock.Mock(), *SAVES, "--ckpt.load_enable", "--ckpt.path", str(tmp_path / "svaed"))
    assert str(refused.value) == (
        f"openrlhf_sagc: --ckpt.load_enable finds no checkpoint in --ckpt.path {tmp_path}/svaed, and --ckpt.output_dir {tmp_path} "
        "has the model of an earlier run: give the --ckpt.path of that run, or drop --ckpt.load_enable to begin anew, which moves "
        "the model aside"
    )
    assert (tmp_path / "model.safetensors").read_text() == "weights"


@pytest.fixture(params=[{"episodes": 1}, {"episodes": 0, "prompts_consumed": 200, "prompts_waiting": 0}])
def finished(saved, tmp_path, request):
    """The checkpoint of a run's only episode, and the model that the run has saved."""
    note = request.param
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (saved / NOTE).write_text(json.dumps({"format": 1, "files": [], **note}))
    return (tmp_path / "model.safetensors").read_bytes()


def test_a_finished_run_keeps_its_model_byte_for_byte(run_main, tmp_path, finished, capsys):
    training = mock.Mock()
    run_main(training, *SAVES, "--ckpt.load_enable")
    assert not training.called and (tmp_path / "model.safetensors").read_bytes() == finished
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"openrlhf_sagc: nothing is left to train after step 1: 1 episode(s) are over: the model in --ckpt.output_dir {tmp_path} "
        "stays as it is; a higher --train.num_episodes trains on"
    )


@pytest.mark.parametrize(
    "file, keep", [("model.safetensors", 0), ("model.safetensors", -1), ("tokenizer_config.json", 0)]
)
def test_a_finished_run_saves_a_model_that_is_missing_or_was_cut(run_main, tmp_path, finished, capsys, file, keep):
    if keep:
        (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:keep])
    else:
        (tmp_path / file).unlink()
    training = mock.Mock()
    run_main(training, *SAVES, "--ckpt.load_enable")
    assert (
        training.called
        and f"its model is now saved from there, in --ckpt.output_dir {tmp_path}\n" in capsys.readouterr().out
    )


def test_a_run_that_has_steps_left_moves_the_earlier_model_beside_its_own(run_main, tmp_path, finished):
    training = mock.Mock()
    run_main(training, *SAVES, "--ckpt.load_enable", "--train.num_episodes", "2")
    assert training.called and (tmp_path / "earlier-1/model.safetensors").read_bytes() == finished


def test_a_mistyped_path_says_that_the_run_begins_anew_and_cuts_no_trace(run_main, tmp_path, saved, capsys):
    (tmp_path / "model.safetensors").unlink()
    flags = [*SAVES, "--ckpt.load_enable", "--ckpt.path", str(tmp_path / "svaed"), "--rollout.trace"]

    def train(args, _):
        assert not args.ckpt.load_enable
        trace = RunTrace(args.rollout.trace, warnings.append)
        trace._rows = ["b,0-0,7,1,0,1,4,1,0\n"]
        trace.write()

    warnings = []
    before = (tmp_path / "run.csv").read_bytes()
    run_main(mock.Mock(side_effect=train), *flags, str(tmp_path / "run.csv"))
    assert f"finds no checkpoint in --ckpt.path {tmp_path}/svaed: the run begins anew\n" in capsys.readouterr().out
    assert (tmp_path / "run.before-resume-1.csv").read_bytes() == before and len(warnings) == 1
    assert len((tmp_path / "run.csv").read_bytes().splitlines()) == 2


def test_a_second_run_with_the_same_trace_is_refused(run_main, tmp_path):
    def train(args, _):
        with pytest.raises(SystemExit, match="--rollout.trace .*run.csv is written by another run"):
            run_main(mock.Mock(), *flags[:-4], "--ckpt.output_dir", str(tmp_path / "2"), *flags[-2:])

    flags = [
        "--ckpt.output_dir",
        str(tmp_path / "1"),
        "--rollout.trace",
        str(tmp_path / "run.csv"),
    ]
    run_main(mock.Mock(side_effect=train), *flags)


def test_a_resume_with_other_data_ends_before_ray_starts(run_main, tmp_path, saved, capsys):
    resume = [*SAVES, "--ckpt.load_enable"]
    run_main(lambda args, _: write_notes(args.ckpt.path, 1, args.data.described), *resume)
    assert "does not say on which data it was trained: they are taken for the same" in capsys.readouterr().out
    run_main(training := mock.Mock(), *resume)
    assert training.called and "global_step1" not in capsys.readouterr().out
    with pytest.raises(
        SystemExit, match="had 200 prompts, and --data.prompt_dataset has 150: resume with that data, or"
    ):
        run_main(mock.Mock(), *resume, "--data.max_samples", "150")
    run_main(training, *resume, "--data.max_samples", "150", "--rollout.resume_data", "anew", "--train.seed", "9")
    said = capsys.readouterr().out
    assert "has 150: the episode begins anew with these\n" in said and "goes on with --train.seed 9 (was 42)\n" in said


def test_flags_that_the_checkpoint_overrides_are_named_and_kept(run_main, tmp_path, saved, capsys):
    """The optimizer's, which DeepSpeed loads; OpenRLHF goes on with them without a word."""
    resume = [*SAVES, "--ckpt.load_enable"]
    run_main(lambda args, _: write_notes(args.ckpt.path, 1, args.data.described), *resume, "--actor.adam.lr", "1e-3")
    other = ["--actor.adam.lr", "1e-5", "--actor.adam.betas", "0.9", "0.99", "--actor.lr_warmup_ratio", "0.5"]
    described = []
    run_main(lambda args, _: described.append(args.data.described), *resume, *other)
    said = capsys.readouterr().out
    assert "the run goes on with --actor.lr_warmup_ratio 0.5 (was 0.03)\n" in said
    assert (
        "the optimizer of global_step1 goes on with --actor.adam.lr 0.001 (not 1e-05), --actor.adam.betas 0.9 0.95 (not 0.9 0.99): "
        "for the new values begin a run from its model" in said
    )
    starts = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert starts[-1]["flags"]["actor.adam.lr"] == 1e-5
    assert starts[-1]["held"] == described[0]["held"] and starts[-1]["held"]["actor.adam.lr"] == 1e-3


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("module", ["openrlhf_sagc", "openrlhf_sagc.off"])
def test_a_command_says_whether_engines_are_eager(start_run, monkeypatch, module, eager):
    given = []
    monkeypatch.setattr("openrlhf_sagc.run.trees.bring_tree", lambda tree, eager: given.append(eager))
    start_run(*["--vllm.enforce_eager"] * eager, module=module)
    assert given == [eager]


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_that_comes_before_the_training_ends_it_in_a_line(number, code):
    """SIGUSR1 does not: nothing is there to be saved yet."""
    program = """
import time
from openrlhf_sagc.__main__ import hearing_signals
with hearing_signals():
    print("ready", flush=True)
    time.sleep(100)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == code and said.splitlines()[-1].startswith(
        f"openrlhf_sagc: ended by {number.name} before"
    )
