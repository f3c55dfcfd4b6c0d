"""OpenRLHF's trainers with the samples generator and the experience maker of this package."""

from openrlhf.trainer.ppo_trainer import BasePPOTrainer, PPOTrainer
from openrlhf.trainer.ppo_trainer_async import GenerateSamplesActor, PPOTrainerAsync, TrainingActor
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_sagc.driver.experience import GroupExperienceMaker
from openrlhf_sagc.driver.rollout import StepSamples, StragglerAwareSamplesGenerator


class GroupSampling:
    """What rolls out: the scheduler takes the place of OpenRLHF's samples generator, with its prompts and engines."""

    samples_generator: SamplesGenerator

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        theirs = self.samples_generator
        self.samples_generator = StragglerAwareSamplesGenerator(
            theirs.strategy, theirs.prompts_dataloader, theirs.eval_dataloader, theirs.tokenizer, theirs.vllm_engines
        )


class GroupTraining(BasePPOTrainer):
    """What trains: groups may have any size, and the log has the scheduler's scalars."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.experience_maker = GroupExperienceMaker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            self.strategy,
            self.tokenizer,
        )

    def train_step(self, step: StepSamples, global_step: int) -> tuple[dict, int]:
        status, global_step = super().train_step(step, global_step)
        return {**status, **step.metrics}, global_step


class GroupTrainer(GroupSampling, GroupTraining, PPOTrainer):
    """Rolls out and trains in turn."""


class GroupGenerator(GroupSampling, GenerateSamplesActor):
    """Rolls out beside the training."""


class GroupTrainingActor(GroupTraining, TrainingActor):
    """Trains beside the rollouts."""


class GroupTrainerAsync(PPOTrainerAsync):
    generator_cls = GroupGenerator
    trainer_cls = GroupTrainingActor
