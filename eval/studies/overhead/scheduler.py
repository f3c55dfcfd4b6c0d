"""Time that the scheduler itself takes for a step with thousands of groups in flight, on stub engines.

Counted are the decisions, the queue of prompts, the groups in flight and the engines' bookkeeping. What Ray, vLLM and
OpenRLHF's making of samples take is not.
"""

import math
import statistics
import time
from types import SimpleNamespace
from unittest import mock

import pandas as pd

from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.loop import roll_out
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import ROLLOUT, Back, Dispatch, Ended, Rollout
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.tail_batching import NoTailBatching
from openrlhf_sagc.driver.engines import Engines
from openrlhf_sagc.driver.trainers import collect_less_garbage

TITLE = "The scheduler's own time for a step, 64 engines"
SIZE = 8
MIXED, EQUAL = [1.0, 0.0] * (SIZE // 2), [1.0] * SIZE  # every second group has no signal
RESPONSES = [{ROLLOUT: Rollout(400 + place, 10.0, 0.5, True, False, None)} for place in range(SIZE)]


class NumberedPrompts:
    """An endless source of prompts."""

    size = math.inf

    def __init__(self):
        self.taken = 0

    def begin(self, episode):
        pass

    def take(self, count):
        self.taken += count
        return [(f"prompt {self.taken - i}", "", None) for i in range(count)], False


class StubEngine:
    """Stands for an engine's actor and the references of its calls: what it is sent has ended when it is asked."""

    def __init__(self):
        self.generate_responses, self.__ray_call__ = SimpleNamespace(remote=self._take), mock.Mock()
        self._ended, self._answer = [], None

    def _take(self, message, *_, **__):
        if isinstance(message, Dispatch):
            self._ended += [
                Ended(number, place, RESPONSES[place]) for number, _, places in message.shares for place in places
            ]
        else:
            self._answer, self._ended = self._ended, []
        return self

    def future(self):
        return self

    def exception(self):
        return None

    def add_done_callback(self, callback):
        callback(self)

    def result(self):
        return [self._answer]


def planner_for(groups: int, engines: int, predicts: bool) -> StepPlanner:
    """A planner whose steps have about `groups` groups in flight, of which half are kept."""
    return StepPlanner(
        StragglerAwareGroupController([SIZE]),
        DynamicSampler(),
        NoTailBatching(),
        LengthPredictor() if predicts else None,
        hold="prompts",
        samples=0,
        prompts=groups // 2,
        signal="tokens",
        num_engines=engines,
    )


class StubTrainer:
    """Drops every second group, and sees how many are in flight."""

    most = 0

    def look_on(self, step: Step) -> None:
        self.most = max(self.most, len(step.flight.running))

    def wait_on(self, step: Step) -> None:
        raise RuntimeError("stub engines always answer")

    def take_back(self, step: Step, back: Back) -> None:
        step.judge(back, MIXED if back.group.number % 2 else EQUAL, back.members)


def run_step(planner: StepPlanner, queue: PromptQueue, engines: Engines) -> tuple[int, int]:
    """A step as training takes it; the groups dispatched, and the most in flight."""
    step, trainer = planner.begin(queue), StubTrainer()
    roll_out(step, step.dispatch(), engines, trainer)
    while step.flight.running:  # in training those that a full step does not need are stopped
        for back in step.receive(engines.ended()):
            trainer.take_back(step, back)
    step.end()
    step.close(keep=False, tokens_of=lambda group: SIZE)
    return step.dispatched, trainer.most


def timed(groups: int, engines: int, predicts: bool, repeats: int) -> dict[str, float]:
    """Medians over `repeats` steps, and the least seconds of them: on a shared machine neighbours slow some down."""
    reward = SimpleNamespace(timeout=1.0, retries=0)
    settings = Settings(reward=reward, rollout=SimpleNamespace(agent_timeout=None, drafts="off"))
    planner, queue = planner_for(groups, engines, predicts), PromptQueue(NumberedPrompts())
    rows = []
    with mock.patch("ray.put"), mock.patch("openrlhf_sagc.driver.engines._sampling_of", lambda *_: {}):
        parts = Engines(None, settings, [StubEngine() for _ in range(engines)])
        for _ in range(repeats):
            start = time.perf_counter()
            dispatched, most = run_step(planner, queue, parts)
            seconds = time.perf_counter() - start
            rows.append((dispatched, most, seconds, 1e3 * seconds / dispatched))
    names = ("dispatched", "in_flight", "seconds", "seconds_per_1000")
    medians = {name: statistics.median(column) for name, column in zip(names, zip(*rows))}
    return {**medians, "least_per_1000": min(row[-1] for row in rows)}


def measure(groups: tuple[int, ...] = (1024, 8192), engines: int = 64, repeats: int = 15) -> pd.DataFrame:
    """A row for each number of groups in flight and placement."""
    collect_less_garbage()  # as in the trainer's process
    return pd.DataFrame(
        {"placement": "by length" if predicts else "OpenRLHF's"} | timed(number, engines, predicts, repeats)
        for number in groups
        for predicts in (False, True)
    )
