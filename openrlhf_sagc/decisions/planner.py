"""The policies at work on a step: what it trains, which prompts it rolls out where, what becomes of its groups.

Training and the simulator call the same verbs, in this order:

    step = planner.plan(flight, queue)
    prompts = planner.draw(step, flight, queue)                                     # and again after every group
    groups = planner.dispatch(step, flight, prompts)
    group, members, was_stopped = planner.receive(step, flight, queue, number, rollouts)
    planner.judge(step, flight, group, scores, samples)                             # unless it was stopped
    groups = flight.commit(step)                                                    # after draw, if groups are streamed
    planner.observe(step, flight.take_lengths())                                    # which chooses the next group size
    trained, unused = flight.close(step, keep=...)
    queue.put_back_unused([group.prompt for group in unused])
    plain = planner.weigh(step, tokens and samples of the trained groups)
    planner.finish(step, waiting=len(queue))
    planner.timed(seconds)                                                          # of the step; before the next plan
"""

from collections.abc import Sequence
from typing import Any, Protocol

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.in_flight import GroupsInFlight
from openrlhf_sagc.decisions.length_prediction import LengthPredictor, balance, place_whole
from openrlhf_sagc.decisions.objectives import Forecast
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import Group, Prompt, Rollout, Round, first_to_finish
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.step_model import StepModel
from openrlhf_sagc.decisions.token_weights import PlainSteps, TokenWeights, Trained


class Batcher(Protocol):
    """A policy that says of every step how it is rolled out."""

    def decide(self, num_groups: int, group_size: int, *, waiting: int, drained: bool) -> Round:
        """The round of the next step.

        Args:
            num_groups, group_size: what the step needs.
            waiting: prompts that were put back.
            drained: whether the episode has no other prompts.
        """
        ...

    def observe(self, waiting: int) -> None:
        """The step is closed, and `waiting` prompts are left behind."""

    def metrics(self) -> dict[str, float]:
        """Scalars of the last step, logged as `tail_batching/*`; `long_round` is 1 if it was a long round."""
        ...

    def state_dict(self) -> dict:
        """What `load_state_dict` needs to go on, between two steps; JSON-serialisable."""
        ...

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()` of any batcher, since the flags may have changed."""


MOST_STOPS = 2  # of a prompt that must finish; then it is given up


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
        step_model: expects a step's seconds at each size, for a controller whose objective is throughput.
        token_weights: says what a step counts as; None for a loss that is no mean over tokens.

    `steps` is the number of steps that are closed.
    """

    def __init__(
        self,
        controller: StragglerAwareGroupController,
        sampler: DynamicSampler,
        batcher: Batcher,
        predictor: LengthPredictor | None,
        *,
        hold: str,
        samples: int,
        prompts: int,
        signal: str,
        num_engines: int,
        step_model: StepModel | None = None,
        token_weights: TokenWeights | None = None,
    ) -> None:
        self.controller = controller
        self.sampler = sampler
        self.batcher = batcher
        self.predictor = predictor
        self.step_model = step_model
        self.token_weights = token_weights
        self._hold, self._samples, self._prompts = hold, samples, prompts
        self._signal = signal
        self._num_engines = num_engines
        self.steps = 0

    def plan(self, flight: GroupsInFlight, queue: PromptQueue) -> Step:
        """The next step."""
        size = self.controller.group_size
        num_groups = self._num_groups(size)
        return Step(
            number=self.steps,
            group_size=size,
            num_groups=num_groups,
            round=self.batcher.decide(num_groups, size, waiting=len(queue), drained=queue.is_drained),
            acceptance_rate=self.sampler.acceptance_rate(size),
            rate_groups=self.sampler.groups_known(size),
            max_dispatched=self.sampler.max_gen_batches * num_groups,
            carried_accepted=len(flight.accepted),
            carried_running=len(flight.running),
        )

    def draw(self, step: Step, flight: GroupsInFlight, queue: PromptQueue) -> list[Prompt]:
        """The prompts to dispatch now.

        Prompts that must finish are drawn in long rounds alone, and never more of them than are expected to fill the step.
        """
        count = step.groups_to_dispatch(len(flight.accepted), len(flight.running))
        if not count:
            return []
        max_put_back = 0
        if step.round.long:
            needed = int((step.num_groups - len(flight.accepted)) / step.acceptance_rate + 1e-9)
            max_put_back = max(needed - flight.must_finish_running, 0)
        return queue.draw(count, max_put_back=max_put_back, next_episode_allowed=step.has_groups)

    def dispatch(self, step: Step, flight: GroupsInFlight, prompts: list[Prompt]) -> list[Group]:
        """The groups of these prompts, which run from now on.

        Their engines follow from what runs where, as the scheduler counts it. No engine is asked, which would cost a call
        to each. With a predictor each rollout is placed for itself, and the groups come the longest first.
        """
        step.dispatched += len(prompts)
        loads = [flight.loads[engine] for engine in range(self._num_engines)]
        if self.predictor is None:
            groups = flight.new_groups(step, prompts, place_whole(loads, [step.round.rollouts] * len(prompts)))
            flight.run(groups)
            return groups
        expected = [round(self.predictor.predict(str(prompt.text))) for prompt in prompts]
        placed = balance(loads, expected, step.round.rollouts)
        groups = flight.new_groups(step, prompts, [engines for _, engines in sorted(placed)], expected)
        groups = [groups[place] for place, _ in placed]
        flight.run(groups)
        return groups

    def receive(
        self, step: Step, flight: GroupsInFlight, queue: PromptQueue, number: int, rollouts: Sequence[Rollout]
    ) -> tuple[Group, list[int], bool]:
        """A group is back with all rollouts of its prompt.

        Returns:
            The group; the places of its members among the rollouts; whether a member was stopped. If so, the prompt is
            put back or given up, and the group is not to be judged.
        """
        members = first_to_finish(rollouts, flight.running[number].size)
        lengths = [rollouts[place] for place in members]
        group = flight.take_back(number, lengths)
        tokens, _, _, finished, stopped, _ = zip(*lengths)
        if self.predictor:
            self.predictor.observe(str(group.prompt.text), tokens, [not whole for whole in finished])
        was_stopped = any(stopped)
        if was_stopped:
            step.unused_tokens += sum([rollout.tokens for rollout in rollouts])
            step.stopped += 1
            prompt = group.prompt
            prompt = prompt._replace(stops=prompt.stops + prompt.must_finish)
            if prompt.stops < MOST_STOPS:
                queue.put_back(prompt)
            else:
                step.given_up.append(prompt)
        elif len(rollouts) > len(members):
            step.unused_tokens += sum([rollout.tokens for rollout in rollouts]) - sum(tokens)
        return group, members, was_stopped

    def judge(
        self,
        step: Step,
        flight: GroupsInFlight,
        group: Group,
        scores_G: Sequence[float | None],
        samples: Sequence[Any],
    ) -> None:
        """Keep the group with its samples for training, or drop it."""
        verdict = self.sampler.judge(scores_G)
        step.verdicts.append(verdict)
        if verdict.reason is None:
            flight.accept(group, samples)

    def observe(self, step: Step, lengths: list[list[Rollout]]) -> None:
        """Show the controller the groups that came back in this step; it chooses the size of the next step.

        With the objective throughput the size stays until a step was timed.
        """
        tokens = [[rollout.tokens for rollout in group] for group in lengths]
        running = [[not rollout.finished for rollout in group] for group in lengths]
        shown: Sequence[Sequence[float]] = tokens
        if self._signal == "seconds":
            shown = [[rollout.running_seconds for rollout in group] for group in lengths]
        may_change = step.round.ends_frame and (self.step_model is None or self.step_model.is_timed)
        self.controller.observe(shown, running, self._forecasts(tokens, running), may_change)

    def timed(self, seconds: float) -> None:
        """The step that is closed took so long from the beginning of its rollouts to that of the next step's."""
        if self.step_model:
            self.step_model.timed(seconds)

    def weigh(self, step: Step, groups: Sequence[Trained]) -> PlainSteps | None:
        """The step trains these groups: what the actors weigh it by, None for a plain step."""
        return self.token_weights.weigh(groups, step.round.long) if self.token_weights else None

    def finish(self, step: Step, waiting: int) -> None:
        """The step is closed, and `waiting` prompts are left behind."""
        self.sampler.observe(step.verdicts)
        self.batcher.observe(waiting)
        self.steps += 1

    def state_dict(self) -> dict:
        """What `load_state_dict` needs, between two steps; JSON-serialisable."""
        return {
            "steps": self.steps,
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
        self.sampler.load_state_dict(state["sampler"])
        self.batcher.load_state_dict(state["batcher"])
        if self.predictor and state["predictor"]:
            self.predictor.load_state_dict(state["predictor"])
        if self.step_model and state["step_model"]:
            self.step_model.load_state_dict(state["step_model"])
        if self.token_weights and state.get("token_weights"):
            self.token_weights.load_state_dict(state["token_weights"])
        self.steps = state["steps"]

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
        return [
            model.forecast(size, self._num_groups(size), self.sampler.acceptance_rate(size), ratio)
            for size in self.controller.group_sizes
        ]
