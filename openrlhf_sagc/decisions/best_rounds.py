"""Chooses between plain steps, sorted steps and tail batching's rounds by what was measured so far."""

from openrlhf_sagc.decisions.records import Outlook, Round
from openrlhf_sagc.decisions.sorted_steps import HALF_A_STEP, SortedSteps
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher

PLAIN, SORTED, ROUNDS = "plain", "sort", "stop"
EXPLAINED = 0.8  # share of the spread between prompts from which on sorted steps are faster than rounds
IDLE_SORTED = 0.6  # idle share of plain steps from which on sorted steps are faster
IDLE_ROUNDS = 0.8  # the same of rounds, which decode a third of their tokens in vain
MOST_STEPS = 300  # without a plain step, which alone shows the idle share, and takes as long as two or three others


class BestRounds:
    """Begins with a plain step, and then takes what was measured to be best.

    Where the idle tail is short, as where rollouts queue for the engines, steps are plain. Else they are sorted, once
    history explains enough of the spread between prompts; before that rounds with a pool wait for it, if the idle tail
    pays for what they stop. A frame is never left before its end.

    Args:
        prompt_ratio: of sorted steps, see `SortedSteps`.
        seed: of the order of steps.
    """

    def __init__(self, *, prompt_ratio: float = 1.0, seed: int = 0) -> None:
        self._rules: dict[str, NoTailBatching | SortedSteps | TailBatcher] = {
            PLAIN: NoTailBatching(),
            SORTED: SortedSteps(prompt_ratio=prompt_ratio, seed=seed),
            ROUNDS: TailBatcher(prompt_ratio=1.5, pool=4, seed=seed),
        }
        self._kind = PLAIN
        self._since_plain = 0  # steps

    def decide(self, num_groups: int, group_size: int, outlook: Outlook) -> Round:
        """The next round, whose step needs these groups."""
        before, why = self._kind, ""
        if outlook.framed < HALF_A_STEP or self._kind == PLAIN:
            self._kind, why = self._choice(outlook)
        round = self._rules[self._kind].decide(num_groups, group_size, outlook)
        return round._replace(why=why if self._kind != before else "")

    def _choice(self, outlook: Outlook) -> tuple[str, str]:
        """What comes next, and why."""
        idle, explained = outlook.idle_tail, outlook.explained
        if idle is None or self._since_plain >= MOST_STEPS:
            return PLAIN, "a plain step, to see its idle tail"
        seen = (
            f"the idle tail of plain steps is {idle:.0%} of them, and history explains {explained:.0%} of the spread"
        )
        if idle >= IDLE_SORTED and explained >= EXPLAINED:
            return SORTED, f"sorted steps: {seen} between prompts"
        if idle >= IDLE_ROUNDS:
            return ROUNDS, f"short and long rounds: {seen} between prompts"
        return PLAIN, f"plain steps: {seen} between prompts"

    def observe(self, waiting: int) -> None:
        """The round is over, and `waiting` prompts are left behind."""
        self._since_plain = 0 if self._kind == PLAIN else self._since_plain + 1
        self._rules[self._kind].observe(waiting)

    def metrics(self) -> dict[str, float]:
        """Those of the last round's rule, and `plain_round`, 1 if it was plain."""
        return {"plain_round": float(self._kind == PLAIN), **self._rules[self._kind].metrics()}

    def state_dict(self) -> dict:
        """What `load_state_dict` needs to go on, between two rounds; JSON-serialisable."""
        states = {key: value for rule in self._rules.values() for key, value in rule.state_dict().items()}
        return {**states, "kind": self._kind, "since_plain": self._since_plain}

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()` of any batcher."""
        self._kind, self._since_plain = state.get("kind", PLAIN), state.get("since_plain", 0)
        for rule in self._rules.values():
            rule.load_state_dict(state)
