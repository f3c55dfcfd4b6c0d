"""The launch scripts with smoke.sh's sizes, up to the command that they start on the CPU stack."""

import json
import re
import runpy
from types import SimpleNamespace

import pytest
from launched import GPUS, MODULES, SCRIPTS, SETTINGS, pairs
from studies.recipes.run import CONFIGS


@pytest.fixture(scope="module")
def preflight():
    return SimpleNamespace(**runpy.run_path(str(SCRIPTS / "preflight.py")))


def smoke_environment():
    """What smoke.sh gives a launch script on a CPU."""
    assignments = re.findall(r"^export (.*?)(?: #.*)?$", (SCRIPTS / "smoke.sh").read_text(), re.MULTILINE)
    return {"DEVICE": "cpu", "ACTOR_GPUS": "1", "ENGINES": "1", "TENSOR_PARALLEL": "1"} | {
        name: text.strip('"') for line in assignments for name, text in re.findall(r'(\w+)=("[^"]*"|\S+)', line)
    }


@pytest.mark.parametrize("sagc", [*SETTINGS, *MODULES])
@pytest.mark.parametrize("script", GPUS)
def test_smoke_form(commands, start_trainer, many_prompts, script, sagc):
    """With smoke.sh's sizes the script trains on the CPU stack; tests/stack does so."""
    sizes = smoke_environment()
    sizes |= {"MODEL": "/model", "DATA": many_prompts, "EVAL_DATA": many_prompts, "STEP_MINUTES": "6", "SAGC": sagc}
    assert sizes["PROMPTS"] == "8"
    checked, started = commands(script, "--data.max_samples", "200", **sizes)
    assert checked[:2] == started[:2] == ["bash", str(SCRIPTS / "on_cpu.sh")]
    tree, module = "cpu-base" if sagc == "unpatched" else "cpu-patched", MODULES.get(sagc, "openrlhf_sagc")
    assert started[2:6] == [tree, "python", str(SCRIPTS / "train_on_cpu.py"), module]
    how = {"unpatched": tree} if sagc == "unpatched" else {"module": module}
    args = start_trainer(started[6:], **how).args
    assert args.actor.num_nodes * args.actor.num_gpus_per_node == args.vllm.num_engines == 1
    steps = args.rollout.batch_size * args.rollout.n_samples_per_prompt / args.train.batch_size
    assert steps == 2 and args.train.max_tokens_per_gpu >= args.data.max_len
    assert args.ckpt.save_steps == 10 and args.train.async_enable == ("async" in script)


SIZES = {
    *("--actor.num_nodes", "--actor.num_gpus_per_node", "--vllm.num_engines", "--vllm.tensor_parallel_size"),
    *("--data.max_len", "--rollout.batch_size", "--rollout.n_samples_per_prompt", "--rollout.max_new_tokens"),
    *("--rollout.sagc.group_sizes", "--train.batch_size", "--train.max_tokens_per_gpu"),
    *("--reward.overlong_buffer_len", "--ckpt.save_steps", "--eval.steps"),
}
TASK = {
    *(
        "--actor.model_name_or_path",
        "--data.prompt_dataset",
        "--eval.dataset",
        "--reward.remote_url",
        "--train.num_episodes",
    ),
    *("--ckpt.output_dir", "--ckpt.path", "--logger.tensorboard_dir", "--logger.wandb.run_name"),
}
NEED_GPUS = {"--ds.attn_implementation", "--vllm.sync_backend", "--vllm.enforce_eager", "--ds.param_dtype"}


@pytest.mark.parametrize("script", GPUS)
def test_the_smoke_form_is_the_recipe_but_for_sizes_and_what_needs_a_gpu(commands, script):
    same = {
        "MODEL": "Qwen/Qwen2.5-7B",
        "DATA": "d",
        "EVAL_DATA": "e",
        "OUTPUT": "/output",
        "RUN_NAME": "run",
        "SAGC": "all",
    }
    started = [
        commands(script, **environment)[-1]
        for environment in (same, smoke_environment() | same | {"STEP_MINUTES": "6"})
    ]
    recipe, smoke = (
        {pair[0]: pair[1:] for pair in pairs(words[words.index("openrlhf_sagc") + 1 :])} for words in started
    )
    assert not recipe.keys() - smoke.keys() and smoke.keys() - recipe.keys() <= NEED_GPUS
    assert {name for name, value in recipe.items() if smoke[name] != value} <= SIZES | {"--ds.attn_implementation"}


@pytest.fixture
def on_gpus(commands, tmp_path):
    """on_gpus(script, *flags, heads=4, **environment): what smoke.sh starts with DEVICE=gpu: preflight.py's words and the training's."""

    def run(script, *flags, heads=4, fails=False, **environment):
        (tmp_path / "model").mkdir(exist_ok=True)
        sizes = CONFIGS["Qwen2.5-1.5B"] | {"num_attention_heads": heads}
        (tmp_path / "model/config.json").write_text(json.dumps(sizes))
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data/heldout.jsonl").write_text("{}\n" * 5)
        usual = {"DEVICE": "gpu", "TASK": str(tmp_path), "OUTPUT": str(tmp_path / "output"), "STEPS": "4"}
        ran = commands("smoke.sh", script, *flags, fails=fails, **usual, **environment)
        return ran if fails else [words for words in ran if words[1] != "-c"]

    return run


def test_the_smoke_form_on_a_gpu_is_the_recipe_but_for_sizes(commands, on_gpus):
    """Of what an installed vLLM runs, with CUDA graphs; the CPU stack is not set up."""
    checked, started = on_gpus(
        "dapo_qwen2.5_7b.sh", "--train.seed", "7", heads=CONFIGS["Qwen2.5-1.5B"]["num_attention_heads"]
    )
    assert "preflight.py" in checked[1] and checked[checked.index("--device") + 1] == "gpu"
    assert started[:3] == ["python3", "-m", "openrlhf_sagc"]
    flags = {pair[0]: pair[1:] for pair in pairs(started[3:])}
    recipe = {pair[0]: pair[1:] for pair in pairs(commands("dapo_qwen2.5_7b.sh")[-1][3:])}
    assert flags.keys() - recipe.keys() == {"--data.max_samples", "--train.seed"} and not recipe.keys() - flags.keys()
    differing = {name for name, value in recipe.items() if flags[name] != value}
    assert differing <= SIZES | TASK and flags["--vllm.engine_args"] == recipe["--vllm.engine_args"]
    assert "DEVICE is cpu or gpu, not 'tpu'" in commands("smoke.sh", "dapo_qwen2.5_7b.sh", DEVICE="tpu", fails=True)


GPU_SIZES = {  # training's, engines, GPUs of an engine
    (): (1, 1, 1),
    ("TENSOR_PARALLEL",): (2, 1, 2),
    ("TENSOR_PARALLEL", "ACTOR_GPUS"): (2, 1, 2),
    ("ACTOR_GPUS",): (2, 2, 1),
}


@pytest.mark.parametrize("given", GPU_SIZES, ids="+".join)
@pytest.mark.parametrize("script", GPUS)
def test_the_smoke_form_has_the_gpus_that_it_is_given(on_gpus, preflight, script, given):
    """By default one, and two where engines have their own; of each script preflight counts the same. None needs a cluster."""
    checked, started = on_gpus(script, **dict.fromkeys(given, "2"))
    assert "--cluster" not in checked and started[:3] == ["python3", "-m", "openrlhf_sagc"]
    settings = preflight.settings_of(started[3:])
    names = ("--actor.num_gpus_per_node", "--vllm.num_engines", "--vllm.tensor_parallel_size")
    assert tuple(int(settings[name][0]) for name in names) == GPU_SIZES[given]
    training, engines, ranks = GPU_SIZES[given]
    own = engines * ranks if "async" in script else 0
    assert preflight.gpus_needed(settings) == training + own and preflight.fewest_gpus(settings) == (2 if own else 1)


def test_the_asynchronous_smoke_form_takes_engines_of_two_gpus_beside_one_for_training(on_gpus, preflight):
    _, started = on_gpus("dapo_async_partial_rollout.sh", TENSOR_PARALLEL="2", ACTOR_GPUS="1")
    assert preflight.gpus_needed(preflight.settings_of(started[3:])) == 3


def test_engines_whose_gpus_cannot_share_the_tiny_model_are_refused(on_gpus):
    said = on_gpus("dapo_qwen2.5_7b.sh", TENSOR_PARALLEL="2", heads=3, fails=True)
    assert "TENSOR_PARALLEL=2 does not divide the heads of" in said and "take 1, 2 or 4, without TASK" in said


def test_a_script_for_a_cluster_submits_unless_it_is_told_to_start(commands):
    script = "dapo_qwen2.5_32b_multinode.sh"
    assert commands(script)[-1][0] == "ray" and commands(script, SUBMIT="no")[-1][0] == "python3"
    assert "SUBMIT is ray or no, not slurm" in commands(script, SUBMIT="slurm", fails=True)
