"""The policies at work: they plan one step after another, and learn from each."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.in_flight import InFlight
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.objectives import Forecast
from openrlhf_sagc.decisions.pool import Pool
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import HALF_A_STEP, Outlook, Part, Prompt, Rollout, Round
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.step_model import StepModel
from openrlhf_sagc.decisions.token_weights import PlainSteps, TokenWeights, Trained

WAITS_WEIGHT = 0.1  # of a step in the mean of what steps have waited for rewards
Lengths = Sequence[Sequence[float]]  # of rollouts, by groups


class SizePolicy(Protocol):
    """Chooses the group size of every step. `StragglerAwareGroupController` says what the verbs are; a policy that is given
    as FILE.py:Class may take fewer of the arguments behind `groups`."""

    @property
    def group_size(self) -> int: ...

    def observe(
        self, groups: Lengths, *, running: list[list[bool]], forecasts: list[Forecast] | None, frame_ends: bool
    ) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Batcher(Protocol):
    """A policy that says of every step how it is rolled out."""

    def decide(self, num_groups: int, group_size: int, outlook: Outlook) -> Round:
        """The round of the next step, which needs these groups."""
        ...

    def observe(self, waiting: int, step: Step) -> None:
        """The step is closed, and `waiting` prompts are left behind."""

    def metrics(self) -> dict[str, float]:
        """Scalars of the last step, logged as `tail_batching/*`; `long_round` is 1 if it was a long round."""
        ...

    def state_dict(self) -> dict:
        """What `load_state_dict` needs to go on, between two steps; JSON-serialisable."""
        ...

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()` of any batcher, since the flags may have changed."""


class StepPlanner:
    """Plans one step after another.

    Args:
        controller: chooses the group size.
        sampler: judges groups, and knows how many of them are kept.
        batcher: says how a step is rolled out.
        predictor: expects lengths, by which `num_engines` engines are balanced; without one they are by numbers of
            rollouts, and groups stay whole.
        hold: what a step keeps at every group size, "samples" or "prompts".
        samples, prompts: of a step, where they are held.
        signal: a rollout's length as the controller sees it, "tokens" or "seconds".
        num_engines: engines to place rollouts on.
        whole_groups: whether all rollouts of a group go to one engine, with a predictor too.
        step_model: expects a step's seconds at each of `group_sizes`, for the objective throughput.
        token_weights: says what a step counts as; None for a loss that is not a mean over tokens.
        pool: keeps prompts in flight over steps, in an asynchronous run.

    `flight` is what is in flight, `steps` the number of steps that are closed.
    """

    def __init__(
        self,
        controller: SizePolicy,
        sampler: DynamicSampler,
        batcher: Batcher,
        predictor: LengthPredictor | None,
        *,
        hold: str,
        samples: int,
        prompts: int,
        signal: str,
        num_engines: int,
        whole_groups: bool = False,
        step_model: StepModel | None = None,
        group_sizes: Sequence[int] = (),
        token_weights: TokenWeights | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.controller = controller
        self.sampler = sampler
        self.batcher = batcher
        self.predictor = predictor
        self.step_model, self._group_sizes = step_model, group_sizes
        self.token_weights = token_weights
        self.pool = pool
        self._hold, self._samples, self._prompts = hold, samples, prompts
        self._signal = signal
        self.num_engines = num_engines
        self.whole_groups = whole_groups
        self.flight = InFlight()
        self.steps = 0
        self._episode = 0  # that a step was last planned in by this process
        self._waits = [0.0, 0.0]  # for rewards at the ends of steps: seconds of the last step, and on average

    def begin(self, queue: PromptQueue) -> Step:
        """The next step, which goes on with what is in flight."""
        size = self.controller.group_size
        num_groups = self._num_groups(size)
        rate = self.sampler.acceptance_rate(size)
        explained = 0.0
        if self.predictor:
            if queue.episode != self._episode:
                self._episode = queue.episode
                self.predictor.begin_episode()
            # A later episode's prompts are taken to have a history.
            explained = self.predictor.explained_again if queue.episode > 1 else self.predictor.explained
        framed = len(queue.frame) * rate / num_groups
        left = queue.left * rate / num_groups
        waiting = len(queue) + (len(queue.frame) if framed < HALF_A_STEP else 0)  # a frame that is over is dissolved
        drained = queue.left <= len(queue)  # before a draw that gets nothing
        # A step dispatches no more, so that a forecast draws no more.
        asked_rate = max(rate, 1 / self.sampler.max_gen_batches)
        outlook = Outlook(waiting, drained, framed, explained, left, asked_rate, self._waits[1])
        round = self.batcher.decide(num_groups, size, outlook)
        return Step(
            number=self.steps,
            group_size=size,
            num_groups=num_groups,
            round=round,
            part=self._part(queue, round, num_groups / rate),
            acceptance_rate=rate,
            rate_groups=self.sampler.groups_known(size),
            max_dispatched=self.sampler.max_gen_batches * num_groups + (self.pool.prompts if self.pool else 0),
            flight=self.flight,
            queue=queue,
            policies=self,
            pool=self.pool,
        )

    def _part(self, queue: PromptQueue, round: Round, needed: float) -> Part | None:
        """The round's part of the frame, which it may begin; a step needs so many prompts without any surplus."""
        if not round.steps:
            queue.dissolve_frame()  # of a run with other flags
            return None
        per_step = math.ceil(round.prompt_ratio * needed - 1e-9)
        if round.begins:
            queue.begin_frame(round.steps, per_step, self._expected_length, from_data=not round.long)
        return queue.frame.part(round.steps, per_step, round.place)

    def _expected_length(self, prompt: Prompt) -> float:
        return self.predictor.predict(prompt.identity) if self.predictor else 1.0

    def observe(self, step: Step) -> None:
        """Show the controller the groups that came back in this step; it chooses the size of the next step.

        With the objective throughput the size stays until a step was timed.
        """
        waited = step.elapsed - step.generated
        mean = self._waits[1] if self.steps else waited
        self._waits = [waited, mean + WAITS_WEIGHT * (waited - mean)]
        tokens = [[rollout.tokens for rollout in group] for group in step.lengths]
        running = [[not rollout.finished for rollout in group] for group in step.lengths]
        shown: Lengths = tokens
        if self._signal == "seconds":
            shown = [[rollout.running_seconds for rollout in group] for group in step.lengths]
        # Of sorted steps, or of short rounds and the long one that finishes what these left behind.
        ends_frame = step.part.of == 1 if step.part else step.round.prompt_ratio == 1
        may_change = ends_frame and (self.step_model is None or self.step_model.is_timed)
        forecasts = self._forecasts(tokens, running)
        self.controller.observe(shown, running=running, forecasts=forecasts, frame_ends=may_change)

    def timed(self, seconds: float) -> None:
        """The step that is closed took so long, up to the beginning of the next one's rollouts; before that begins."""
        if self.step_model:
            self.step_model.timed(max(seconds - self._waits[0], 0.0))

    def weigh(self, step: Step, groups: Sequence[Trained]) -> PlainSteps | None:
        """The step trains these groups: what the actors weigh it by, None for a plain step."""
        if self.token_weights is None:
            return None
        begins = step.round.begins and not step.round.long
        return self.token_weights.weigh(groups, step.round.long, begins)

    def evaluated(self, text: str, label: Any, rollouts: Sequence[Rollout]) -> None:
        """An evaluation rolled this prompt out; that says something of its length, if it is a training prompt as well."""
        prompt = Prompt(text, label, None, 0).identity
        if self.predictor and self.predictor.knows(prompt):
            unfinished = [not rollout.finished for rollout in rollouts]
            self.predictor.observe(prompt, [rollout.tokens for rollout in rollouts], unfinished, is_fair=False)

    def finish(self, step: Step) -> None:
        """The step is closed."""
        self.sampler.observe(step.verdicts)
        self.batcher.observe(len(step.queue), step)
        self.steps += 1

    def state_dict(self) -> dict:
        """What `load_state_dict` needs, between two steps; JSON-serialisable."""
        return {
            **self.flight.state_dict(),
            "steps": self.steps,
            "waits": self._waits,
            "controller": self.controller.state_dict(),
            "sampler": self.sampler.state_dict(),
            "batcher": self.batcher.state_dict(),
            "predictor": self.predictor.state_dict() if self.predictor else None,
            "step_model": self.step_model.state_dict() if self.step_model else None,
            "token_weights": self.token_weights.state_dict() if self.token_weights else None,
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`; tail batching, length prediction and the objective may be others.

        Raises:
            ValueError: the controller's state does not fit.
        """
        self.controller.load_state_dict(state["controller"])
        self.flight.load_state_dict(state)
        self.sampler.load_state_dict(state["sampler"])
        self.batcher.load_state_dict(state["batcher"])
        if self.predictor and state["predictor"]:
            self.predictor.load_state_dict(state["predictor"])
        if self.step_model and state["step_model"]:
            self.step_model.load_state_dict(state["step_model"])
        if self.token_weights and state.get("token_weights"):
            self.token_weights.load_state_dict(state["token_weights"])
        self.steps, self._waits = state["steps"], state.get("waits", [0.0, 0.0])

    def _num_groups(self, size: int) -> int:
        """Groups that a step of this size trains."""
        return self._prompts if self._hold == "prompts" else self._samples // size

    def _forecasts(self, tokens: list[list[int]], running: list[list[bool]]) -> list[Forecast] | None:
        """What the next step is expected to take at each size; None without a model, or as long as it has seen nothing."""
        model, size = self.step_model, self.controller.group_size
        if model is None:
            return None
        model.observe(size, self._num_groups(size), tokens, running)
        if not model.has_seen:
            return None
        ratio = getattr(self.batcher, "prompt_ratio", 1.0)
        forecasts = [
            model.forecast(size, self._num_groups(size), self.sampler.acceptance_rate(size), ratio)
            for size in self._group_sizes
        ]
        rewards = self._waits[1] if model.is_timed else 0.0  # before, forecasts are in units of the first step
        return [forecast._replace(seconds=forecast.seconds + rewards) for forecast in forecasts]
