"""Records that pass between the policies, the scheduler, the engines and the simulator."""

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

ROLLOUT = "rollout"  # key by which a response of an engine carries its `Rollout`
FEWEST = 2  # samples of a group that teach something
HALF_A_STEP = 0.5  # a frame with fewer prompts than this share of a step needs is over


class Outlook(NamedTuple):
    """What is known before a step, besides its size.

    `waiting` prompts were put back, and `drained` says that the episode has no others. The prompts that are left in a frame
    are expected to fill `framed` steps, and all that the episode has left `left` ones. `explained` is the share of the
    spread of lengths between prompts that was foreseen, see `LengthPredictor`. Dynamic sampling keeps groups at this `rate`,
    or at more if a step stops asking before. `rewards` are the seconds for which steps have waited for nothing else.
    """

    waiting: int = 0
    drained: bool = False
    framed: float = 0.0
    explained: float = 0.0
    left: float = math.inf
    rate: float = 1.0
    rewards: float = 0.0

    @property
    def is_frame_over(self) -> bool:
        """Whether no step can be drawn from the frame."""
        return self.framed < HALF_A_STEP


class Round(NamedTuple):
    """How a step is rolled out.

    `long`: prompts that were put back are drawn first, and run to the end. `prompt_ratio` is prompts dispatched over
    prompts needed. `rollouts` are dispatched for a prompt; the first group_size of them that finish are its group.

    A round of prompts that are sorted by their expected lengths draws a part of a `Frame`, which has at most `steps` more
    steps, this one included; 0: prompts come as they wait. `place` in [0, 1) says which part of those left, the shortest
    first. A round that `begins` a frame fills it first, a long one with prompts that were put back alone. `why` says for
    the log what kind of rounds comes from now on, and why; empty if nothing changes.
    """

    long: bool
    prompt_ratio: float
    rollouts: int
    steps: int = 0
    place: float = 0.0
    begins: bool = False
    why: str = ""


class Part(NamedTuple):
    """The part of a frame that a step draws: number `place`, from 0, of the `of` parts that are left; 1: it is the last."""

    place: int
    of: int


class Prompt(NamedTuple):
    """A training prompt, as it was drawn from the data.

    `episode` counts from 1. `must_finish` says that a group of this prompt was stopped or not trained before: the step
    that draws it waits for it, so that a slow prompt is not put off again and again. `stops` counts how often it was
    stopped all the same, since nothing came back any more.
    """

    text: str
    label: Any
    images: Any
    episode: int
    must_finish: bool = False
    stops: int = 0

    @property
    def identity(self) -> str:
        """What makes it the same prompt, in every episode and run."""
        return f"{self.text}\0{self.label}"


class Rollout(NamedTuple):
    """What an engine measured of one rollout; if the rollout did not finish, up to its end.

    `seconds` run from the dispatch inside the engine's actor. `queue_seconds` of them were spent waiting for vLLM's
    scheduler, and `reward_seconds`, the last ones, for a reward function or server, which `refused` some requests; some were
    `retried`. `finished` says that there is a whole response. `stopped` says that the scheduler, or the rollouts of the same
    prompt that finished first, ended this one. `failure` says in one line why there is no reward after all attempts. A rollout that is neither finished nor stopped is one whose agent failed.
    """

    tokens: int
    seconds: float
    queue_seconds: float
    finished: bool
    stopped: bool
    failure: str | None
    reward_seconds: float = 0.0
    refused: int = 0
    retried: int = 0

    @property
    def generated(self) -> float:
        """Seconds from the dispatch until nothing but its reward was waited for."""
        return max(self.seconds - self.reward_seconds, 0.0)

    @property
    def running_seconds(self) -> float:
        """Seconds without the waits for vLLM's scheduler and for the reward; an agent's tools count."""
        return max(self.generated - self.queue_seconds, 0.0)


class Group(NamedTuple):
    """The rollouts of one prompt, from their dispatch on.

    `number` counts groups in the order of dispatch over the whole run. `step` is the step that dispatched the group.
    `rollouts` are dispatched, and `size` of them are the group's members. `engines` has the engine of each rollout.
    `load` is what each rollout adds to its engine's: the tokens that are expected of it, or 1 where nothing is expected.
    It `began` so many seconds after its step, as far as the rollouts of others had told. `samples` are there once the group is
    accepted: those of its members that have a reward. `weights` counts the policy's updates before its dispatch.
    """

    number: int
    step: int
    prompt: Prompt
    size: int
    rollouts: int
    engines: tuple[int, ...] = ()
    load: int = 1
    began: float = 0.0
    samples: Sequence[Any] = ()
    weights: int = 0


class Begun(NamedTuple):
    """What a rollout had generated when a checkpoint was saved, and goes on from in a resumed run.

    `tokens` are an int32 array, `log_probs` a float32 array of as many numbers, or None where the run needs none.
    `finish_reason` is vLLM's of a response that only its reward was missing from; else None.
    """

    tokens: Any
    log_probs: Any
    finish_reason: str | None


class Share(NamedTuple):
    """The rollouts of a group that run in one engine, by their places in the group; some may have `begun` in an earlier run."""

    number: int
    prompt: Prompt
    places: tuple[int, ...]
    begun: Mapping[int, Begun] = {}


class Dispatch(NamedTuple):
    """What an engine is to begin, in the place of a prompt: one call for all that is dispatched together.

    `tells`: it also says which rollouts have nothing but their reward to come. `earlier`: tokens of prompts and of earlier
    responses to each, as bytes of int32, for its drafts.
    """

    shares: list[Share]
    tells: bool = False
    earlier: Sequence[tuple[bytes, list[bytes]]] = ()


class Collect(NamedTuple):
    """Asks an engine, in the place of a prompt, for the rollouts that have ended since it was asked last, see `Ended`."""


class AskBegun(NamedTuple):
    """Asks an engine, in the place of a prompt, for what its rollouts have so far: a `Begun` or None by group and place."""


class CountDrafts(NamedTuple):
    """Asks an engine, in the place of a prompt, for the counts of its drafts, see `Drafts.counts`."""


class Candidate(NamedTuple):
    """A group that is back, as a filter of one's own sees it: the prompt's text and label, and lists with an entry for each
    member that has a reward: its raw score, its length in response tokens, and whether it was cut off at its limit."""

    prompt: str
    label: Any
    scores: list[float]
    lengths: list[int]
    truncated: list[bool]


class Ended(NamedTuple):
    """A rollout that has ended in an engine: its group, its place there, and the response; None if only its reward is missing."""

    number: int
    place: int
    response: dict | None


class Fate(Enum):
    """What became of a group. Why one was dropped says its verdict, see dynamic_sampling."""

    KEPT = "kept"  # it may be trained
    DROPPED = "dropped"
    PUT_BACK = "put back"  # it was stopped, and its prompt is drawn again
    GIVEN_UP = "given up"  # it was stopped too often


class Back(NamedTuple):
    """A group that is back.

    `rollouts` and `responses` are side by side, `members` are the places of its members among them. `fate` is None as long
    as it is to be judged.
    """

    group: Group
    rollouts: list[Rollout]
    responses: list[dict]
    members: list[int]
    fate: Fate | None

    def candidate(self, scores_R: Sequence[float | None]) -> Candidate:
        """The group whose members have these scores; None stands for a reward that failed."""
        scored = [(score, place) for score, place in zip(scores_R, self.members) if score is not None]
        return Candidate(
            self.group.prompt.text,
            self.group.prompt.label,
            [score for score, _ in scored],
            [self.rollouts[place].tokens for _, place in scored],
            [bool(self.responses[place].get("truncated")) for _, place in scored],
        )
