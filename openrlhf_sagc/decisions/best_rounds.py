"""Chooses between plain steps, sorted steps and tail batching's rounds by forecasts, which learn from every step."""

from typing import Any

from openrlhf_sagc.decisions.dynamic_sampling import groups_to_ask
from openrlhf_sagc.decisions.records import Outlook, Round
from openrlhf_sagc.decisions.round_seconds import POOL, RATIO, RoundSeconds, Seconds
from openrlhf_sagc.decisions.sorted_steps import SortedSteps
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher

PLAIN, SORTED, ROUNDS = Seconds._fields
WORDS = {PLAIN: "plain steps", SORTED: "sorted steps", ROUNDS: "short and long rounds"}
STAY = 0.97  # share of the seconds of what a run has that something else must stay below
SORT_GAIN = 0.97  # the same of sorted steps and plain ones
GATHER_GAIN = 1.05  # the same where nothing is foreseen and a filter leaves groups over: frames gather the slow ones
ROUND_GAIN = 0.87  # the same of rounds, which decode a third of their tokens in vain
QUEUED_GAIN = 0.75  # the same where rollouts queue, which forecasts of rounds know least of
SORT_FIRST = (
    0.9  # share of the seconds of sorted steps that rounds must stay below: those waste nothing, and are unbiased
)
PRIOR_STEPS = 5  # for which a kind is taken to have been off as all kinds were
ODD = 3  # times what was expected that a step counts as at most: a reward that hangs is no matter of its kind
FADE = 0.98  # of what was measured, a step: what was slow once may be tried again
BLIND = 2  # short rounds at a run's start, before which too little is known to leave them
SLOTS = 128  # that every engine has


class BestRounds:
    """Takes what is forecast to be the fastest, see `RoundSeconds`; a frame, or short rounds and the long ones they fill,
    end before anything else begins.

    Waits for rewards are added to all forecasts alike. What a kind of step takes besides over its forecast is measured, and corrects it; until it was tried for long, what all kinds
    take does so as well. Where rollouts queue and a filter drops groups, a frame comes in the place of plain steps before
    anything is foreseen: it gathers what its steps leave over, which is slow. The first step has no forecast: it is a
    short round where every rollout has a slot, and else a plain step. Such rounds may end before their first long one.

    Args:
        prompt_ratio: of sorted steps, see `SortedSteps`.
        seed: of the order of steps.
        num_engines: that share a step's rollouts.
    """

    def __init__(self, *, prompt_ratio: float = 1.0, seed: int = 0, num_engines: int = 1) -> None:
        self._sorted = SortedSteps(prompt_ratio=prompt_ratio, seed=seed)
        self._rounds = TailBatcher(prompt_ratio=RATIO, pool=POOL, seed=seed)
        self._rules: dict[str, NoTailBatching | SortedSteps | TailBatcher] = {
            PLAIN: NoTailBatching(),
            SORTED: self._sorted,
            ROUNDS: self._rounds,
        }
        self._slots = SLOTS * num_engines
        self._forecasts = RoundSeconds(num_engines)
        self._kind = ""
        self._was_long = False  # the last round
        self._taken = [0.0, 0]  # seconds and steps since the frame began, or the short rounds
        self._over: dict[str, list[float]] = {}  # by kind: sum over steps of seconds over those forecast; steps

    def decide(self, num_groups: int, group_size: int, outlook: Outlook) -> Round:
        """The next round, whose step needs these groups."""
        before, why = self._kind, ""
        if self._is_open(outlook):
            self._kind, why = self._choice(num_groups, group_size, outlook)
            if self._kind != ROUNDS:
                self._rounds.leave()
        round = self._rules[self._kind].decide(num_groups, group_size, outlook)
        return round._replace(why=why if self._kind != before else "")

    def _is_open(self, outlook: Outlook) -> bool:
        """Whether anything may come next."""
        if self._kind == ROUNDS:
            if self._forecasts.is_guess and self._taken[1] >= BLIND:
                return True
            # Rounds that leave nothing behind have no long one.
            return outlook.is_frame_over and (self._was_long or not outlook.waiting)
        return self._kind != SORTED or self._sorted.is_over(outlook)

    def _choice(self, num_groups: int, group_size: int, outlook: Outlook) -> tuple[str, str]:
        """What comes next, and why."""
        found = self._forecasts.forecast(num_groups, group_size, outlook.rate, outlook.explained)
        if found is None:
            asked = RATIO * groups_to_ask(num_groups, outlook.rate) * group_size
            if asked <= self._slots and self._taken[1] < BLIND:
                return ROUNDS, "short and long rounds, until more is known: each rollout has a slot"
            return PLAIN, ""
        if self._taken[1] and not self._forecasts.is_guess:
            self._learn(found)
        seconds = {kind: getattr(found, kind) * self._correction(kind) + outlook.rewards for kind in WORDS}
        likely = {kind: x * (STAY if kind == self._kind else 1.0) for kind, x in seconds.items()}
        gathers = outlook.rate < 1 and self._forecasts.queues and found.sort == found.plain <= found.stop
        kind = self._fastest(likely, GATHER_GAIN if gathers else SORT_GAIN)
        if kind != self._kind or not self._forecasts.is_guess:
            self._taken = [0.0, 0]
        return kind, f"{WORDS[kind]}: forecast " + ", ".join(f"{WORDS[kind]} {x:.3g} s" for kind, x in seconds.items())

    def _fastest(self, seconds: dict[str, float], sort_gain: float) -> str:
        if self._forecasts.is_guess:
            return PLAIN if seconds[PLAIN] < seconds[ROUNDS] else ROUNDS
        rounds, gain = seconds[ROUNDS], QUEUED_GAIN if self._forecasts.queues else ROUND_GAIN
        can_sort = seconds[SORTED] < sort_gain * seconds[PLAIN]
        if rounds < gain * seconds[PLAIN] and (not can_sort or rounds < SORT_FIRST * seconds[SORTED]):
            return ROUNDS
        return SORTED if can_sort else PLAIN

    def _learn(self, found: Seconds) -> None:
        """How far the last frame, rounds or plain step were off what is forecast by now."""
        seconds, steps = self._taken
        expected = getattr(found, self._kind)
        if seconds > 0 and expected > 0:
            total, known = self._over.get(self._kind, (0.0, 0.0))
            over = min(seconds / steps / expected, ODD * self._correction(self._kind))
            self._over[self._kind] = [total + steps * over, known + steps]

    def _correction(self, kind: str) -> float:
        """Of forecasts: by what this kind was off, and as far as it was tried little, by what all kinds were."""
        if not self._over:
            return 1.0
        of_all, all_steps = map(sum, zip(*self._over.values()))
        total, steps = self._over.get(kind, (0.0, 0.0))
        return (total + PRIOR_STEPS * of_all / all_steps) / (steps + PRIOR_STEPS)

    def observe(self, waiting: int, step: Step | None = None) -> None:
        """The round is over, and `waiting` prompts are left behind."""
        if step:
            self._forecasts.observe(step)
            self._taken = [self._taken[0] + step.generated, self._taken[1] + 1]
            self._over = {kind: [FADE * total, FADE * steps] for kind, (total, steps) in self._over.items()}
            self._was_long = step.round.long
        self._rules[self._kind].observe(waiting)

    def metrics(self) -> dict[str, float]:
        """Always the same names, or a run that goes on as another kind would look like two runs: those of `TailBatcher`,
        `sorted_round` and `plain_round`."""
        rounds = self._rounds.metrics()
        long = rounds["long_round"] * (self._kind == ROUNDS)
        return {
            **rounds,
            "long_round": long,
            "sorted_round": float(self._kind == SORTED),
            "plain_round": float(self._kind == PLAIN),
        }

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on, between two rounds; JSON-serialisable."""
        states = {key: value for rule in self._rules.values() for key, value in rule.state_dict().items()}
        own = {"kind": self._kind, "was_long": self._was_long, "taken": list(self._taken), "over": dict(self._over)}
        return {**states, **own, "forecasts": self._forecasts.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()` of any batcher."""
        self._kind, self._was_long = state.get("kind", ""), state.get("was_long", False)
        self._taken, self._over = list(state.get("taken", [0.0, 0])), dict(state.get("over", {}))
        for rule in self._rules.values():
            rule.load_state_dict(state)
        if "forecasts" in state:
            self._forecasts.load_state_dict(state["forecasts"])
