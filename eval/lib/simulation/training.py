"""Simulated training: the scheduler's steps on a model of engines instead of vLLM.

Policies, queue, steps and their loop are those of training. What a flag of training switches on is left out: nothing is
kept for the next step (dynamic_filtering_surplus), and a step that is not full ends the run (dynamic_filtering_at_cap).

What runs when a step has its groups is stopped. Its prompts and those of surplus groups come again, in the next step or a
long round, which then waits for them. All of a step is generated before it is trained, on the same GPUs, unless its work
(work.py) says otherwise. With a pool nothing is stopped, and steps are trained beside the rollouts of later ones, which a weight
sync does not hold up here.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from lib.simulation.actors import Actors, SimulatedStream
from lib.simulation.cluster import Cluster
from lib.simulation.costs import CostModel
from lib.simulation.engine import Request
from lib.simulation.lengths import LogNormal, Trace
from lib.simulation.work import Work

from openrlhf_sagc.decisions.loop import roll_out, shortfall, stop
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import ROLLOUT, Back, Ended, Fate, Group, Rollout
from openrlhf_sagc.decisions.step import Step


class EndlessEpisode:
    """A source of lengths as the source of a `PromptQueue`; the label of a prompt is what the source drew."""

    size = math.inf

    def __init__(self, source: Trace | LogNormal, generator: np.random.Generator):
        self._source, self._generator = source, generator

    def begin(self, episode: int) -> None:
        """The first episode has no end."""

    def resume(self) -> None:
        """Nothing is to be restored: the state of the draws is the generator's."""

    def take(self, count: int) -> tuple[list[tuple], bool]:
        drawn = self._source.draw_prompts(count, self._generator)
        return [(str(prompt), prompt, None) for prompt in drawn], False


class SimulatedEngines:
    """The engines as the step's loop wants them; a response has its `Rollout`, its score and its end on the clock.

    Args:
        cluster: the engines.
        source: of the lengths and scores.
        prompt_tokens: of every prompt.
        generator: of the draws.
    """

    def __init__(
        self, cluster: Cluster, source: Trace | LogNormal, prompt_tokens: int, generator: np.random.Generator
    ):
        self._cluster, self._source, self._generator = cluster, source, generator
        self._prompt_tokens = prompt_tokens
        self._scores: dict[tuple[int, int], float] = {}  # of the rollouts that run, by group and place

    def dispatch(self, groups: Sequence[Group]) -> None:
        """Draw the rollouts of these groups, in the order of their numbers, and send them."""
        drawn, most = sorted(groups), max(group.rollouts for group in groups)
        prompts = [group.prompt.label for group in drawn]
        tokens_BR, correct_BR = self._source.draw_rollouts(prompts, most, self._generator)
        scores_BR = np.zeros(tokens_BR.shape) if correct_BR is None else correct_BR.astype(float)
        tokens_of = {group.number: tokens_R.tolist() for group, tokens_R in zip(drawn, tokens_BR)}
        for group, scores_R in zip(drawn, scores_BR.tolist()):
            self._scores |= {(group.number, place): scores_R[place] for place in range(group.rollouts)}
        requests = [
            # An engine decodes a token at least, the end of the text.
            Request(self._prompt_tokens, max(tokens_of[group.number][place], 1), group.number, place, engine)
            for group in groups
            for place, engine in enumerate(group.engines)
        ]
        self._cluster.dispatch(requests)

    def ended(self) -> list[Ended]:
        """The rollouts that end next."""
        return [self._ended(request) for request in self._cluster.ended()]

    def stop_surplus(self, groups: dict[int, list[int]]) -> None:
        """They end at once."""
        self._cluster.drop(groups)

    def stop(self) -> Iterator[list[Ended]]:
        """All that runs."""
        yield [self._ended(request) for request in self._cluster.stop()]

    def _ended(self, request: Request) -> Ended:
        now, score = self._cluster.now, self._scores.pop((request.group, request.place))
        end = now if request.ended is None else request.ended
        response = {ROLLOUT: rollout_of(request, now), "score": score, "end": end}
        return Ended(request.group, request.place, response)


class SimulatedTraining:
    """One run; `step()` simulates one training step after another.

    `judged` are the groups that the last step trained, and those that dynamic sampling dropped.

    Args:
        planner: as in training.
        source: of prompts and response lengths; with episodes if it is a `PromptSource`, else of one without end.
        costs: of engines and training.
        gpus: a multiple of `costs.gpus_per_engine`, and of the actors' own GPUs if they have any.
        prompt_tokens: of every prompt.
        seed: of the draws.
        work: what the actors do for a step.
    """

    def __init__(
        self,
        planner: StepPlanner,
        source: Trace | LogNormal,
        costs: CostModel,
        *,
        gpus: int,
        prompt_tokens: int,
        seed: int = 0,
        work: Work | None = None,
    ):
        work = work or Work()
        self.planner, self.costs = planner, costs
        self.actors = Actors(costs, work, gpus=gpus, prompt_tokens=prompt_tokens, seed=seed)
        self.stream = SimulatedStream(self.actors) if work.streams else None
        self.cluster = Cluster(costs, (gpus - work.actor_gpus) // costs.gpus_per_engine)
        generator = np.random.default_rng(seed)
        self.engines = SimulatedEngines(self.cluster, source, prompt_tokens, generator)
        self.queue = PromptQueue(source if hasattr(source, "take") else EndlessEpisode(source, generator))
        self.judged: list[Group] = []
        self._dropped: list[Group] = []  # of the step
        self._judged_tokens: list[int] = []  # of the rollouts of its groups that were not stopped
        self._source = source
        self._ends: list[float] = []  # seconds at which the step's rollouts ended, stopped ones included
        self._trainings: list[tuple[float, float]] = []  # with a pool, begin and end of each step's training

    def step(self) -> dict[str, float]:
        """One training step.

        Returns:
            Its figures: `seconds` and their parts `generation_seconds`, `experience_seconds`, `train_seconds`,
            `sync_seconds`; `group_size`, `prompts` and `samples` trained, `dispatched` groups; `idle_fraction`, 1 -
            mean / last of the seconds at which its rollouts end (a stopped one ends with the step);
            `straggler_rate`; `tokens_max`, the longest response that ended; `tokens_mean` of the responses trained;
            `long_round` and `sorted_round`, 1 or 0; `decoded_tokens`, and of these `wasted_tokens`, of rollouts that no judged
            group has or whose group found no place; `trained_tokens`, and what is expected of their prompts,
            `expected_tokens`; `rollouts` simulated; `preemptions`. Of a run that streams also `sample_share`, the
            share of its samples that was sent before the end of generation, and `hidden_seconds`, those of their training
            before that end, which are in no other figure. Training logs those of whole buckets alone.

        Raises:
            RuntimeError: the groups that a step may dispatch did not fill it.
            ValueError: a rollout does not fit an engine's KV cache, or a rank of the actors has no sample.
        """
        planner, cluster = self.planner, self.cluster
        if self._trainings:  # a step waits until the one before is being trained
            cluster.run_until(self._trainings[-1][0])
            self._sync()
        start, preemptions, self._ends, self._dropped = cluster.now, cluster.preemptions, [], []
        self._judged_tokens = []
        step, groups = self._begun()
        if self.stream:
            self.stream.begin(step)
        roll_out(step, groups, self.engines, self)
        if not planner.pool:
            stop(step, self.engines, self)
        step.end()
        if len(step.flight.accepted) < step.num_groups:
            raise RuntimeError(shortfall(step))
        step.close(keep=False, tokens_of=lambda group: sum(group.samples))
        self.queue.close_episode([])
        trained = step.trained

        self.judged = [*trained, *self._dropped]
        generation, samples = cluster.now - start, sum(len(group.samples) for group in trained)
        response_tokens = sum(sum(group.samples) for group in trained)
        rounds, wasted = planner.batcher.metrics(), step.unused_tokens
        parts, streamed = self._seconds(generation, trained)
        if planner.pool:
            parts["generation"] = self._trained(parts)
        planner.timed(sum(parts.values()))
        return {
            "seconds": sum(parts.values()),
            **{f"{part}_seconds": seconds for part, seconds in parts.items()},
            "group_size": step.group_size,
            "prompts": step.num_groups,
            "samples": samples,
            "dispatched": step.dispatched,
            "idle_fraction": 1 - (np.mean(self._ends) - start) / generation if generation else 0.0,
            "straggler_rate": planner.controller.metrics()["straggler_rate"],
            "tokens_max": max(
                (rollout.tokens for group in step.lengths for rollout in group if rollout.finished), default=0
            ),
            "tokens_mean": response_tokens / samples,
            **{name: rounds.get(name, 0.0) for name in ("long_round", "sorted_round")},
            "decoded_tokens": wasted + sum(self._judged_tokens),
            "wasted_tokens": wasted + sum(sum(group.samples) for group in step.unused),
            "trained_tokens": response_tokens,
            "expected_tokens": self._expected_tokens(trained),
            "rollouts": len(self._ends),
            "preemptions": cluster.preemptions - preemptions,
            **(planner.token_weights.metrics() if planner.token_weights else {}),
            **streamed,
        }

    def _begun(self) -> tuple[Step, list[Group]]:
        """The next step with its first groups, of a later episode if this one has no prompt left."""
        step = self.planner.begin(self.queue)
        groups = step.dispatch()
        while not groups and self.queue.close_episode([]):
            step = self.planner.begin(self.queue)
            groups = step.dispatch()
        return step, groups

    def _trained(self, parts: dict[str, float]) -> float:
        """The step is trained beside the rollouts of later ones: seconds for which the actors have waited for it."""
        free = self._trainings[-1][1] if self._trainings else 0.0
        begin = max(self.cluster.now, free)
        self._trainings.append((begin, begin + parts["experience"] + parts["train"] + parts["sync"]))
        return begin - free

    def _sync(self) -> None:
        self.planner.flight.weights = sum(end <= self.cluster.now for _, end in self._trainings)

    def _expected_tokens(self, groups: list[Group]) -> float:
        """What all rollouts of their prompts would have on average."""
        expected_G = self._source.expected_tokens([group.prompt.label for group in groups])
        return float(expected_G @ [len(group.samples) for group in groups])

    def _seconds(self, generation: float, trained: list[Group]) -> tuple[dict[str, float], dict[str, float]]:
        """The parts of a step that generates for so long and trains these groups, and what streaming adds to its figures."""
        costs, left, streamed, step_samples, dealt = self.costs, 0.0, {}, None, None
        if self.stream:
            hidden, left = self.stream.hidden_and_left(self.cluster.now)
            rest = self.stream.rest(trained)
            streamed = {"sample_share": 1 - len(rest) / len(trained), "hidden_seconds": hidden}
            step_samples = self.stream.samples if len(rest) < len(trained) else None
            trained, dealt = rest, self.stream.dealt
        experience, training = self.actors.seconds(trained, step_samples, dealt)
        parts = {
            "generation": costs.generation_base + generation,
            "experience": experience,
            "train": left + costs.train_base + training,
            "sync": costs.sync,
        }
        return parts, streamed

    def look_on(self, step: Step) -> None:
        """Let the actors train what the step trains for sure; a pool's engines get the weights of what is trained by now."""
        if step.pool:
            self._sync()
        if self.stream:
            self.stream.send(step.commit(), self.cluster.now)

    def wait_on(self, step: Step) -> None:
        """Simulated engines always end a rollout."""

    def take_back(self, step: Step, back: Back) -> None:
        """Judge a group that is back, unless it was stopped; its samples are their numbers of tokens."""
        self._ends += [response["end"] for response in back.responses]
        if back.fate is None:
            members = [(back.rollouts[place].tokens, back.responses[place]["score"]) for place in back.members]
            tokens_R, scores_R = zip(*members)
            self._judged_tokens += tokens_R
            if step.judge(back, scores_R, tokens_R) is Fate.DROPPED:
                self._dropped.append(back.group)


def rollout_of(request: Request, now: float) -> Rollout:
    """The record of a request that has ended or was stopped `now`."""
    finished = request.ended is not None
    end = request.ended if finished else now
    started = now if request.started is None else request.started
    return Rollout(
        tokens=request.tokens if finished else request.decoded,
        seconds=end - request.arrived,
        queue_seconds=started - request.arrived,
        finished=finished,
        stopped=not finished,
        failure=None,
    )
