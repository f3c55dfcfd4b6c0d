"""The same steps by TRL's GRPOTrainer, with vLLM compiled and in its process. Started by run.py.

TRL pads every sample to the longest of its step, whatever its micro-batch, and asks vLLM for every log-probability.
"""

from functools import partial

import trl.generation.vllm_generation as generation
import trl.trainer.grpo_trainer as trainer_module
from datasets import Dataset
from studies.floor.step_log import StepLog, draw_prompts, load_grader, parse_arguments
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Engine(generation.VLLMGeneration):
    """TRL's engine on vLLM's CPU backend. A step ends with the sync that TRL makes before the next one."""

    steps: StepLog

    def sync_weights(self) -> None:
        # TRL's own calls the model's load_weights, a parameter at a time. The CPU backend packs weights once they are
        # loaded, and drops the loaders that this needs; reload_weights puts them back.
        self.steps.mark("rest")
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        runner.reload_weights(weights_iterator=self._iter_named_params())
        self.llm.reset_prefix_cache()
        self.steps.mark("sync")
        if "tokens" in self.steps.row:  # not before the first one
            self.steps.end()

    def generate(self, *args, **kwargs):
        found = super().generate(*args, **kwargs)
        self.steps.mark("generation")
        return found


class Trainer(GRPOTrainer):
    steps: StepLog

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        self.steps.note(tokens=int(batch["completion_mask"].sum()))
        self.steps.mark("experience")
        return batch


class MarkTraining(TrainerCallback):
    def __init__(self, steps: StepLog):
        self.steps = steps

    def on_step_end(self, *args, **kwargs) -> None:
        self.steps.mark("training")


def config_of(arguments) -> GRPOConfig:
    """What makes TRL fast: no forward pass for vLLM's importance sampling, no checkpointing, no text in the engine."""
    samples = arguments.groups * arguments.size
    return GRPOConfig(
        output_dir=str(arguments.output.parent / "trl"),
        seed=arguments.seed,
        max_steps=arguments.steps * arguments.optimizer_steps,
        per_device_train_batch_size=arguments.micro_batch_size,
        gradient_accumulation_steps=samples // arguments.optimizer_steps // arguments.micro_batch_size,
        steps_per_generation=samples // arguments.micro_batch_size,
        num_generations=arguments.size,
        max_completion_length=arguments.max_new_tokens,
        learning_rate=0.0,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": arguments.dtype, "attn_implementation": "eager"},
        gradient_checkpointing=False,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=arguments.max_len,
        vllm_importance_sampling_correction=False,
        generation_kwargs={"detokenize": False},
        shuffle_dataset=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


def main() -> None:
    arguments = parse_arguments(__doc__)
    prompts = draw_prompts(arguments.prompts, arguments.steps * arguments.groups, arguments.seed)
    steps, grade = StepLog(arguments.output), load_grader(arguments.grader)

    def reward(prompts: list[str], completions: list[str], **columns) -> list[float]:
        rewards = grade(prompts, completions)
        steps.note(samples=len(rewards), reward=sum(rewards) / len(rewards))
        return rewards

    generation.LLM = partial(
        generation.LLM, dtype=arguments.dtype
    )  # TRL takes the file's, which some CPUs only emulate
    trainer_module.VLLMGeneration = Engine
    Engine.steps = Trainer.steps = steps
    data = Dataset.from_dict({"prompt": prompts})
    trainer = Trainer(str(arguments.model), reward, config_of(arguments), data, callbacks=[MarkTraining(steps)])
    trainer.train()
    trainer.vllm_generation.sync_weights()  # of the last step


if __name__ == "__main__":
    main()
