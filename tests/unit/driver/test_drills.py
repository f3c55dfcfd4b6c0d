"""A run that loses a part of itself at a random moment, and the run that is resumed from its last checkpoint.

The scheduler is real, engines and trainer are those of fake_engines.py. DRILL_SEED repeats a failure, DRILL_MOMENTS sets
how many moments each fault is tried at.
"""

import io
import os
import random
from collections import Counter

import pytest
import torch
from fake_engines import on_close
from ray.exceptions import RayActorError

PROMPTS, EPISODES = 22, 2
MOMENTS = int(os.environ.get("DRILL_MOMENTS", 20))
CONFIGURATIONS = {
    "plain": {},
    "kept surplus": {"filtering": True, "algo__dynamic_filtering_surplus": "keep"},
    "tail batching": {
        "rollout__tail_batching__enable": True,
        "rollout__tail_batching__method": "stop",
        "rollout__tail_batching__response_ratio": 1.25,
    },
    "hold prompts": {"hold": "prompts", "group_sizes": [4, 8]},
}


class Killed(BaseException):
    """A SIGKILL of the trainer: nothing catches it."""


class Run:
    """The trainer's loop, in which every wait for a group, every update and every save is a moment.

    `trained` are the (prompt, episode) whose step a checkpoint holds.
    """

    def __init__(self, make, save_every, fault=None, moment=None):
        self.generator = make()
        self.save_every, self.fault, self.moment = save_every, fault, moment
        self.moments, self.trained, self.since_save, self.checkpoint = 0, Counter(), [], None
        ray = self.generator.ray
        wait, respond = type(ray).wait, type(ray).respond
        ray.wait = lambda *args, **kwargs: self.pass_moment() or wait(ray, *args, **kwargs)
        ray.respond = lambda ref: self.respond(respond(ray, ref))
        on_close(self.generator, self.note)

    def pass_moment(self):
        self.moments += 1
        if self.fault == "trainer" and self.moments > self.moment:
            raise Killed

    @property
    def is_broken(self):
        return self.moment is not None and self.moments > self.moment

    def respond(self, responses):
        if self.is_broken and self.fault == "engine":
            raise RayActorError(error_msg="The actor died.\nIts process was killed.")
        if self.is_broken and self.fault == "reward server":
            for response in responses:
                response["rollout"] = response["rollout"]._replace(
                    failure="ClientConnectorError: refused (http://host)"
                )
        return responses

    def note(self, step):
        self.since_save += [(int(group.prompt.text), group.prompt.episode) for group in step.trained]

    def go(self, state=None):
        if state:
            self.generator.prompts_dataloader.next, file = state
            file.seek(0)
            self.generator.load_state_dict(torch.load(file, weights_only=True))
        steps = 0
        while self.generator.queue.episode <= EPISODES:
            self.generator.generate_samples()
            self.pass_moment()
            if self.is_broken and self.fault == "actor":
                raise RayActorError(error_msg="The actor died.")  # in the update, before the step is saved
            steps += 1
            if steps % self.save_every == 0 or self.generator.queue.episode > EPISODES:
                self.save()
        return self

    def save(self):
        file = io.BytesIO()
        torch.save(self.generator.state_dict(), file)
        self.pass_moment()  # the file is there, but no checkpoint names it yet
        self.checkpoint = self.generator.prompts_dataloader.next, file
        self.trained.update(self.since_save)
        self.since_save = []


@pytest.mark.parametrize("fault", ["trainer", "engine", "actor", "reward server"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_resumed_run_has_trained_every_prompt_once(make_generator, name, fault):
    seed = int(os.environ.get("DRILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"DRILL_SEED={seed}")
    rng = random.Random(seed)
    flags = {"group_sizes": [4], **CONFIGURATIONS[name]}
    if fault == "reward server":
        flags["reward__max_failure_share"] = 0.0  # or a step with a surplus may lose one prompt, and say so

    def respond(prompt, size):
        return [(5 + prompt * 37 % 83, float(i % 2)) for i in range(size)]

    def make():
        return make_generator(PROMPTS, respond, **flags)

    wanted = Counter((prompt, episode) for prompt in range(PROMPTS) for episode in range(1, EPISODES + 1))
    whole = Run(make, 1).go()
    assert of_the_run(whole.trained) == wanted
    for _ in range(-(-MOMENTS // len(CONFIGURATIONS))):
        cut = Run(make, rng.randint(1, 3), fault, rng.randrange(whole.moments))
        try:
            cut.go()
        except Killed:
            pass
        except (RuntimeError, RayActorError) as error:
            assert isinstance(error, RayActorError) or "\n" not in str(error)
            assert ("lack a reward after" if fault == "reward server" else "died") in str(error)
        resumed = Run(make, 1).go(cut.checkpoint)
        assert of_the_run(cut.trained + resumed.trained) == wanted, (seed, cut.moment)


def of_the_run(trained):
    """Without the prompts that the last step borrowed from an episode that the run does not have."""
    return Counter({key: count for key, count in trained.items() if key[1] <= EPISODES})
