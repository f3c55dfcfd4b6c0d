"""The rollout scheduler: OpenRLHF's samples generator with group control, dynamic sampling and tail batching.

A step asks the policies for its plan, dispatches prompts, judges every group that comes back and dispatches more while
others still run. It closes with exactly the groups that it needs. The rest is stopped, and its prompts are put back.
"""

import itertools
from collections import Counter

import numpy as np
import torch
from openrlhf.utils.logging_utils import init_logger
from tqdm import tqdm

from openrlhf_sagc.config.layout import longest_response
from openrlhf_sagc.config.length_history import read_history
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.decisions.loop import put_back_rest, roll_out, stop
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import ROLLOUT, Back, Fate, Group
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.driver import messages, metrics
from openrlhf_sagc.driver.engines import WAIT, Engines
from openrlhf_sagc.driver.evaluation import EvaluatingGenerator
from openrlhf_sagc.driver.experience import GroupSample, stamped
from openrlhf_sagc.driver.extra_logs import step_logs
from openrlhf_sagc.driver.kept_steps import keep_step
from openrlhf_sagc.driver.prompts import DataloaderPrompts
from openrlhf_sagc.driver.reward_failures import RewardFailures
from openrlhf_sagc.driver.running_groups import running_groups, state_of
from openrlhf_sagc.driver.samples import Sample, loss_tokens, sample_of
from openrlhf_sagc.driver.saved_state import FORMAT, check_saved_state, others_of_ones_own, resumed_state
from openrlhf_sagc.driver.step_seconds import ENGINES_WAIT, StepClock
from openrlhf_sagc.driver.streaming import StepSamples, Stream
from openrlhf_sagc.driver.trace import RunTrace
from openrlhf_sagc.engine.answers import LEFT_OUT
from openrlhf_sagc.policies import build_planner
from openrlhf_sagc.training.training import StepShare

logger = init_logger(__name__)

WAITS_BEFORE_WARNING = 60  # waits in a row without a group
DRAFTS_SAID_AT = 20  # steps after which a line says what drafts gain
LEAST_PATIENCE = 1800.0  # seconds without a group or a request before all that runs is stopped, and rolled out again
PATIENCE = 3.0  # times the longest that the flags let a rollout be outside of the engine, if that is more


class StragglerAwareSamplesGenerator(EvaluatingGenerator):
    """Samples generator whose group size is chosen every step, at a constant number of samples or of prompts.

    `metrics` holds the scalars of the last step for OpenRLHF's log. With a `stream`, groups are trained while others run.
    """

    stream: Stream | None = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.settings = Settings.of(self.args)
        self.planner = build_planner(self.settings, num_engines=len(self.vllm_engines))
        if self.planner.predictor and (history := self.settings.rollout.length_history):
            self.planner.predictor.remember(read_history(history))
        self.flight = self.planner.flight
        self.queue = PromptQueue(DataloaderPrompts(self.prompts_dataloader, self.settings.train.seed))
        self.engines = Engines(self.strategy, self.settings, self.vllm_engines, self.tokenizer_sent)
        self.failures, self.eval_failures = (RewardFailures(self.settings, logger.warning) for _ in range(2))
        self.trace = RunTrace(self.settings.rollout.trace, logger.warning)
        self.clock = StepClock()
        self.metrics: dict[str, float] = {}
        self._keep_surplus = self.settings.algo.dynamic_filtering_surplus == "keep" or self.planner.pool is not None
        self._prompts_of_run = len(self.prompts_dataloader) * self.settings.train.num_episodes
        self._prompts_consumed = 0
        self._going_on = running_groups([], self.planner.num_engines)  # of a checkpoint, until they are dispatched
        self._drafts: Counter[str] = Counter()  # so far, see `Drafts.counts`
        self._warned: set[str] = set()
        self._first_rewards: list[float] | None = []  # of the first step, until it is closed

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list[GroupSample], float | None, int, bool]:
        """One step's rollouts: (samples, pass rate of the dynamic filter in % or None, prompts consumed, exhausted).

        `exhausted` ends the episode: each of its prompts was trained or dropped. A step that takes the last ones fills
        up with prompts of the next episode, so that every step is full.

        Raises:
            RuntimeError: too many rewards failed, or the groups that a step may dispatch did not fill it.
        """
        if (seconds := self.clock.step_over()) is not None:
            self.planner.timed(seconds)
        if not self.settings.train.async_enable:  # else the trainer counts them
            self.flight.weights = self.planner.steps
        step = self.planner.begin(self.queue)
        if step.round.why:
            logger.info(f"from step {step.number + 1} on {step.round.why}")
        groups = step.dispatch()
        if not groups and not self.flight:
            return [], None, 0, self.queue.close_episode([])
        self.clock.begin()
        progress = min(self._prompts_consumed / self._prompts_of_run, 1.0)
        self._roll_out(step, groups, progress, **generate_kwargs)
        if why := messages.shortfall(step, self.settings, self.failures):
            raise RuntimeError(why)
        step.close(keep=self._keep_surplus, tokens_of=loss_tokens)
        self.trace.write()
        self._log(step)
        samples = self._samples_to_train(step, progress)
        consumed = len(step.trained) + step.dropped.total() + len(step.given_up)
        self._prompts_consumed += consumed
        pass_rate = step.pass_rate if self.settings.algo.dynamic_filtering_enable else None
        if folder := self.settings.train.rollouts_to:
            keep_step(folder, step.number + 1, samples, pass_rate)
        if (pool := self.planner.pool) and pool.is_over(self.flight, self.queue):
            put_back_rest(step, self.engines)
        exhausted = self.queue.close_episode(self.flight.prompts)
        return samples, pass_rate, consumed, exhausted

    def _roll_out(self, step: Step, groups: list[Group], progress: float, **generate_kwargs) -> None:
        """Roll the step out, beginning with these groups, before which this share of the run's prompts was used."""
        self._generate_kwargs = generate_kwargs
        self.failures.begin()
        self.engines.tells = step.tells
        self.engines.wake()
        self.engines.resume(generate_kwargs)
        if self.engines.earlier:
            self._drafts = self.engines.draft_counts()  # without those of evaluations
        if self.stream:
            self.stream.begin(step, progress)
        with tqdm(total=step.num_groups, desc=f"Generate samples (group size {step.group_size})") as self._progress:
            self.engines.go_on(*self._going_on)
            self._going_on = running_groups([], self.planner.num_engines)
            roll_out(step, groups, self.engines, self)
        if not self._keep_surplus:
            stop(step, self.engines, self)  # counted in this step
        step.end()
        self.engines.pause()
        self.engines.sleep()
        self._warn_of_equal_rewards()

    def _samples_to_train(self, step: Step, progress: float) -> StepSamples:
        """The samples of a closed step that `stream` has not sent to the actors."""
        stream = self.stream if self.stream and self.stream.has_sent else None
        lost = sum(group.size - len(group.samples) for group in step.trained)
        share = stream.share if stream else StepShare(progress, sum(group.size for group in step.trained), lost=lost)
        share.plain = step.plain  # which the actors get with the last samples
        samples = stamped(stream.rest(step.trained) if stream else step.trained, share)
        return StepSamples(samples, self.metrics, stream)

    def state_dict(self, *, is_due: bool = True) -> dict:
        """What a resumed run needs, by its keys in a checkpoint.

        All of it is plain data: numbers, strings, lists, dictionaries and tensors, and images if the prompts have them.
        It stays as it is while the run goes on. The trainers ask for it after every step. The running groups of a pool are
        in it if it `is_due` to be saved; else their prompts are put back.
        """
        running = []
        if self.planner.pool and is_due and self.flight.running:
            parts = self.flight.running.values()
            running = state_of(parts, *self.engines.begun(parts))
        planner = self.planner.state_dict()
        planner["accepted"] = [
            [*group, [sample.state_dict() for sample in samples]] for *group, samples in planner["accepted"]
        ]
        state = {
            "format": FORMAT,
            **self.queue.state_dict([] if running else self.flight.running_prompts),
            **planner,
            "running": running,
            **self.trace.state_dict(),
            "data": self.settings.data.described,
            "prompts_consumed": self._prompts_consumed,
        }
        dataloader = {} if state["drained"] else self.prompts_dataloader.state_dict()
        return {"samples_generator": state, "data_loader_state_dict": dataloader}

    def load_state_dict(self, checkpoint_states: dict) -> None:
        """Go on from a checkpoint that holds what `state_dict()` gave.

        With other data, and --rollout.resume_data anew, the episode begins anew. Kept groups of a size that the run no
        longer has are rolled out again.

        Raises:
            ValueError: the checkpoint was saved without this generator, by another version, on other data, or at a group
                size that the run no longer has.
        """
        state = checkpoint_states.get("samples_generator", {})
        check_saved_state(state, self.settings.ckpt.path)
        for line in others_of_ones_own(state, self.settings):
            logger.warning(line)
        state = resumed_state(state, self.settings, len(self.prompts_dataloader))
        if not state["drained"]:
            self.prompts_dataloader.load_state_dict(checkpoint_states["data_loader_state_dict"])
        accepted = [[*group, [Sample.of_state(saved) for saved in samples]] for *group, samples in state["accepted"]]
        self.planner.load_state_dict({**state, "accepted": accepted})
        self.queue.load_state_dict(state)
        self._going_on = running_groups(state["running"], self.planner.num_engines)
        self.flight.run_on(self._going_on.groups)
        if self._going_on.groups:
            logger.info(messages.going_on_line(self._going_on))
        self.trace.load_state_dict(state)
        self._prompts_consumed = state["prompts_consumed"]

    @property
    def _patience(self) -> float:
        """Seconds to wait for a group while no engine decodes: for rewards, agents and their tools alone."""
        reward, agent_timeout = self.settings.reward, self.settings.rollout.agent_timeout or 0.0
        return max(LEAST_PATIENCE, PATIENCE * max(reward.timeout * (reward.retries + 1), agent_timeout))

    def look_on(self, step: Step) -> None:
        """Show how far the step is, and let the actors train what it trains for sure; called by the loop."""
        if self.stream:
            self.stream.send(step.commit())
        self._progress.update(min(len(self.flight.accepted), step.num_groups) - self._progress.n)

    def wait_on(self, step: Step) -> None:
        """Nothing has come back for WAIT seconds: warn, or stop what nobody decodes any more; called by the loop."""
        if self.engines.silent_waits == WAITS_BEFORE_WARNING:
            logger.warning(messages.silence_warning(step, WAIT * WAITS_BEFORE_WARNING))
        if self.engines.idle_waits * WAIT > self._patience:
            stop(step, self.engines, self)
            self.engines.silent_waits = self.engines.idle_waits = 0

    def take_back(self, step: Step, back: Back) -> None:
        """Judge a group that is back, unless it was stopped; called by the loop."""
        self.trace.add(step, back)
        for place, rollout in enumerate(back.rollouts):
            if rollout.failure:
                group = back.group.number if place in back.members else None
                self.failures.observe(rollout.failure, group, rollout.tokens)
        if back.fate is Fate.GIVEN_UP:
            logger.warning(messages.given_up_warning(back.group))
        if back.fate is not None:
            return
        samples = [self._sample_of(back.responses[place], **self._generate_kwargs) for place in back.members]
        if self._first_rewards is not None:
            rewards = [sample.reward for sample in samples if sample is not None]
            self._first_rewards += [reward for reward in rewards if reward is not None]
        if self.engines.earlier:
            self.engines.earlier.keep(back.group.prompt.identity, [back.responses[place] for place in back.members])
        step.judge(back, [None if sample is None else sample.raw_score for sample in samples], samples)
        self.failures.check(step.samples_rolled_out)

    def _sample_of(self, response: dict, **generate_kwargs) -> Sample | None:
        """The sample of a response, or None if the reward failed."""
        if response[ROLLOUT].failure or not response[ROLLOUT].finished:
            return None
        if response.get(LEFT_OUT):
            self._warn_once(
                "left out",
                f"{response[LEFT_OUT]}: of extra_logs only finite numbers under names are logged; no reward is lost",
            )
        log_probs = response["rollout_log_probs"]
        if log_probs is not None and np.isnan(log_probs[-1]):
            self._warn_once("no log-probabilities", messages.NO_LOG_PROBS)
        return sample_of(response, generate_kwargs.get("max_len", 2048))  # OpenRLHF's default

    def _log(self, step: Step) -> None:
        """Make the step's metrics, and warn once of what keeps the controller from doing its work."""
        longest = longest_response(self.settings)
        idle_tail, rewards, generation = self.engines.idle_seconds(self.flight.running.values())
        samples = [sample for group in step.trained for sample in group.samples]
        logs, warnings = step_logs(samples)
        self.metrics = {
            **logs,
            **metrics.control_metrics(self.planner, step),
            **metrics.sampling_metrics(step),
            **metrics.rollout_metrics(step.lengths, longest),
            **self.failures.metrics(step.samples_rolled_out, [sample.response_length for sample in samples]),
            **metrics.wait_metrics(
                idle_tail, rewards, generation, itertools.chain(*(rollouts for _, rollouts in step.ran))
            ),
            **(self.stream.metrics() if self.stream else {}),
            **self._draft_metrics(step),
        }
        if self.settings.train.async_enable:
            self.metrics[ENGINES_WAIT] = self.engines.wait_share(self.flight.running.values())
        if self.settings.rollout.sagc.enable:
            warnings |= metrics.control_warnings(self.settings.rollout.sagc, self.metrics, longest)
        warnings |= messages.reward_wait_warning(step.number, generation, self.metrics)
        for kind, warning in warnings.items():
            self._warn_once(kind, warning)

    def _draft_metrics(self, step: Step) -> dict[str, float]:
        """Scalars of the drafts since the step's begin; after some steps a line says what they gain."""
        if not self.engines.earlier:
            others = "speculative_config" in self.settings.vllm.engine_args  # whose iterations nobody counts
            return {} if others else {"rollout/tokens_per_iteration": 1.0}
        before, self._drafts = self._drafts, self.engines.draft_counts()
        counts = self._drafts.copy()
        counts.subtract({**before, "mib": 0})
        drafts = metrics.draft_metrics(counts, self.engines.earlier.mib)
        if step.number + 1 == DRAFTS_SAID_AT and drafts:
            logger.info(messages.drafts_line(self._drafts))
        return drafts

    def _warn_once(self, kind: str, warning: str) -> None:
        """Warn, unless a warning of this kind was given."""
        if kind not in self._warned:
            logger.warning(warning)
        self._warned.add(kind)

    def _warn_of_equal_rewards(self) -> None:
        """Once, after the first step: a reward that says the same of every response is mostly a mistake."""
        rewards, self._first_rewards = self._first_rewards, None
        if rewards and len(rewards) > 1 and min(rewards) == max(rewards):
            logger.warning(messages.equal_rewards_warning(rewards))
