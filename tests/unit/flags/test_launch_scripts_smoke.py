"""The launch scripts with smoke.sh's sizes, up to the command that they start on the CPU stack."""

import re

import pytest
from launched import GPUS, MODULES, SCRIPTS, SETTINGS, pairs


def smoke_environment():
    """What smoke.sh gives a launch script."""
    assignments = re.findall(r"^export (.*?)(?: #.*)?$", (SCRIPTS / "smoke.sh").read_text(), re.MULTILINE)
    return {name: text.strip('"') for line in assignments for name, text in re.findall(r'(\w+)=("[^"]*"|\S+)', line)}


@pytest.mark.parametrize("sagc", [*SETTINGS, *MODULES])
@pytest.mark.parametrize("script", GPUS)
def test_smoke_form(commands, start_trainer, many_prompts, script, sagc):
    """With smoke.sh's sizes the script trains on the CPU stack; tests/stack does so."""
    sizes = smoke_environment()
    sizes |= {"MODEL": "/model", "DATA": many_prompts, "EVAL_DATA": many_prompts, "STEP_MINUTES": "6", "SAGC": sagc}
    assert sizes["DEVICE"] == "cpu" and sizes["PROMPTS"] == "8"
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
