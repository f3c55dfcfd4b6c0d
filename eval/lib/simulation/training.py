"""Simulated training: the steps of openrlhf_sagc/driver/rollout.py on a model of engines instead of vLLM.

Policies, queue, plan and account of a step are the objects that training has. Only the order of their verbs stands here
once more, without what a flag of training switches on: nothing is kept for the next step (dynamic_filtering_surplus), and
a step that is not full ends the run (dynamic_filtering_at_cap). A test compares the steps with training's.

What runs when a step has its groups is stopped. Its prompts and those of surplus groups come again, in the next step or a
long round, which then waits for them. All of a step is generated before it is trained, on the same GPUs, unless its work
(work.py) says otherwise.
"""

import numpy as np
from lib.simulation.actors import Actors, SimulatedStream
from lib.simulation.cluster import Cluster
from lib.simulation.costs import CostModel
from lib.simulation.engine import Request
from lib.simulation.lengths import LogNormal, Trace
from lib.simulation.work import Work

from openrlhf_sagc.decisions.in_flight import GroupsInFlight
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import Group, Rollout
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.token_weights import Trained


class EndlessEpisode:
    """A source of lengths as the source of a `PromptQueue`; the label of a prompt is what the source drew."""

    def __init__(self, source: Trace | LogNormal, generator: np.random.Generator):
        self._source, self._generator = source, generator

    def begin(self, episode: int) -> None:
        """The first episode has no end."""

    def resume(self) -> None:
        """Nothing is to be restored: the state of the draws is the generator's."""

    def take(self, count: int) -> tuple[list[tuple], bool]:
        drawn = self._source.draw_prompts(count, self._generator)
        return [(str(prompt), prompt, None) for prompt in drawn], False


class SimulatedTraining:
    """One run; `step()` simulates one training step after another.

    `judged` are the groups that the last step trained, and those that dynamic sampling dropped.

    Args:
        planner: as in training.
        source: of prompts and response lengths.
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
        self.planner, self.source, self.costs, self.prompt_tokens = planner, source, costs, prompt_tokens
        self.actors = Actors(costs, work, gpus=gpus, prompt_tokens=prompt_tokens, seed=seed)
        self.stream = SimulatedStream(self.actors) if work.streams else None
        self.flight = GroupsInFlight()
        self.cluster = Cluster(costs, (gpus - work.actor_gpus) // costs.gpus_per_engine, self.flight.note_back)
        self._generator = np.random.default_rng(seed)
        self.queue = PromptQueue(EndlessEpisode(source, self._generator))
        self._scores: dict[int, list[float]] = {}  # of the rollouts of groups that run
        self.judged: list[Group] = []
        self._dropped: list[Group] = []  # of the step
        self._ends: list[float] = []  # seconds at which the step's rollouts ended, stopped ones included

    def step(self) -> dict[str, float]:
        """One training step.

        Returns:
            Its figures: `seconds` and their parts `generation_seconds`, `experience_seconds`, `train_seconds`,
            `sync_seconds`; `group_size`, `prompts` and `samples` trained, `dispatched` groups; `idle_fraction`, 1 -
            mean / last of the seconds at which its rollouts end (a stopped one ends with the step);
            `straggler_rate`; `tokens_max`, the longest response that ended; `tokens_mean` of the responses trained;
            `long_round`, 1 or 0; `rollouts` simulated; `preemptions`. Of a run that streams also `sample_share`, the
            share of its samples that was sent before the end of generation, and `hidden_seconds`, those of their training
            before that end, which are in no other figure. Training logs those of whole buckets alone.

        Raises:
            RuntimeError: the groups that a step may dispatch did not fill it.
            ValueError: a rollout does not fit an engine's KV cache, or a rank of the actors has no sample.
        """
        planner, flight, queue, cluster = self.planner, self.flight, self.queue, self.cluster
        start, preemptions, self._ends, self._dropped = cluster.now, cluster.preemptions, [], []
        step = planner.plan(flight, queue)
        if self.stream:
            self.stream.begin(step)
        self._dispatch(step)
        self._stream_committed(step)
        while flight.waits_for(step):
            self._take_back(step, *cluster.next_group())
            self._dispatch(step)
            self._stream_committed(step)
        for number, requests in cluster.stop().items():
            self._take_back(step, number, requests)
        lengths = flight.take_lengths()
        planner.observe(step, lengths)
        if len(flight.accepted) < step.num_groups:
            raise RuntimeError(step.shortfall(len(flight.accepted)))
        trained, unused = flight.close(step, keep=False)
        queue.put_back_unused([group.prompt for group in unused])
        planner.weigh(step, [Trained(sum(group.samples), len(group.samples)) for group in trained])
        planner.finish(step, waiting=len(queue))

        self.judged = [*trained, *self._dropped]
        generation, samples = cluster.now - start, sum(len(group.samples) for group in trained)
        response_tokens = sum(sum(group.samples) for group in trained)
        parts, streamed = self._seconds(generation, trained)
        planner.timed(sum(parts.values()))
        return {
            "seconds": sum(parts.values()),
            **{f"{part}_seconds": seconds for part, seconds in parts.items()},
            "group_size": step.group_size,
            "prompts": step.num_groups,
            "samples": samples,
            "dispatched": step.dispatched,
            "idle_fraction": 1 - (np.mean(self._ends) - start) / generation,
            "straggler_rate": planner.controller.metrics()["straggler_rate"],
            "tokens_max": max(
                (rollout.tokens for group in lengths for rollout in group if rollout.finished), default=0
            ),
            "tokens_mean": response_tokens / samples,
            "long_round": planner.batcher.metrics().get("long_round", 0.0),
            "rollouts": len(self._ends),
            "preemptions": cluster.preemptions - preemptions,
            **(planner.token_weights.metrics() if planner.token_weights else {}),
            **streamed,
        }

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

    def _dispatch(self, step: Step) -> None:
        prompts = self.planner.draw(step, self.flight, self.queue)
        if not prompts:
            return
        drawn = [prompt.label for prompt in prompts]
        groups = self.planner.dispatch(step, self.flight, prompts)
        most = max(group.rollouts for group in groups)
        tokens_BG, correct_BG = self.source.draw_rollouts(drawn, most, self._generator)
        scores_BG = np.zeros(tokens_BG.shape) if correct_BG is None else correct_BG.astype(float)
        tokens_of = {}
        for number, tokens_G, scores_G in zip(
            sorted(x.number for x in groups), tokens_BG.tolist(), scores_BG.tolist()
        ):
            tokens_of[number], self._scores[number] = tokens_G, scores_G
        requests = {
            # An engine decodes a token at least, the end of the text.
            group.number: [
                Request(self.prompt_tokens, max(tokens, 1)) for tokens in tokens_of[group.number][: group.rollouts]
            ]
            for group in groups
        }
        self.cluster.dispatch(requests, [group.engines for group in groups], keep_first=step.keep_first)

    def _stream_committed(self, step: Step) -> None:
        """Let the actors train what the step trains for sure."""
        if self.stream:
            self.stream.send(self.flight.commit(step), self.cluster.now)

    def _take_back(self, step: Step, number: int, requests: list[Request]) -> None:
        """Judge a group that is back, unless it was stopped."""
        now, scores = self.cluster.now, self._scores.pop(number)
        self._ends += [now if request.ended is None else request.ended for request in requests]
        rollouts = [rollout_of(request, now) for request in requests]
        group, members, was_stopped = self.planner.receive(step, self.flight, self.queue, number, rollouts)
        if not was_stopped:
            tokens_G, scores_G = [rollouts[place].tokens for place in members], [scores[place] for place in members]
            self.planner.judge(step, self.flight, group, scores_G, tokens_G)
            if step.verdicts[-1].reason is not None:
                self._dropped.append(group)


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
