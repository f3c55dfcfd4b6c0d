"""The launch scripts with smoke.sh's sizes, up to the command that they start on the CPU stack."""

import json
import re

import pytest
from launched import GPUS, MODULES, SCRIPTS, SETTINGS, pairs
from studies.recipes.run import CONFIGS


def smoke_environment():
    """What smoke.sh gives a launch script on a CPU."""
    assignments = re.findall(r"^export (.*?)(?: #.*)?$", (SCRIPTS / "smoke.sh").read_text(), re.MULTILINE)
    return {"DEVICE": "cpu"} | {
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
    assert {name for name, value in recipe.items() if smoke[name] != value} <= SIZES


def test_the_smoke_form_on_a_gpu_is_the_recipe_but_for_sizes(commands, tmp_path):
    """Of what an installed vLLM runs, with CUDA graphs; the CPU stack is not set up."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIGS["Qwen2.5-1.5B"]))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/heldout.jsonl").write_text("{}\n" * 5)
    environment = {"DEVICE": "gpu", "TASK": str(tmp_path), "OUTPUT": str(tmp_path / "output"), "STEPS": "4"}
    checked, started = commands("smoke.sh", "dapo_qwen2.5_7b.sh", "--train.seed", "7", **environment)
    assert "preflight.py" in checked[1] and checked[checked.index("--device") + 1] == "gpu"
    assert started[:3] == ["python3", "-m", "openrlhf_sagc"]
    flags = {pair[0]: pair[1:] for pair in pairs(started[3:])}
    recipe = {pair[0]: pair[1:] for pair in pairs(commands("dapo_qwen2.5_7b.sh")[-1][3:])}
    assert flags.keys() - recipe.keys() == {"--data.max_samples", "--train.seed"} and not recipe.keys() - flags.keys()
    differing = {name for name, value in recipe.items() if flags[name] != value}
    assert differing <= SIZES | TASK and flags["--vllm.engine_args"] == recipe["--vllm.engine_args"]
    assert "DEVICE is cpu or gpu, not 'tpu'" in commands("smoke.sh", "dapo_qwen2.5_7b.sh", DEVICE="tpu", fails=True)
