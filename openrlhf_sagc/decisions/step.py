"""One step of the run: what it plans to train, and the account of what it has rolled out so far."""

import math
from collections import Counter
from dataclasses import dataclass, field

from openrlhf_sagc.decisions.dynamic_sampling import PRIOR_GROUPS, Verdict, groups_to_ask
from openrlhf_sagc.decisions.records import Prompt, Round

SHARE = 25  # groups that run for each one that a refill has at least
DEVIATIONS = 2.0  # standard errors by which verdicts must fall short of the acceptance rate before the step doubts it


@dataclass
class Step:
    """Plan and account of one step.

    Attributes:
        number: of the step, from 0.
        group_size: members of every group that it dispatches; groups kept from the step before may have another size.
        num_groups: groups that it trains.
        round: how it is rolled out.
        acceptance_rate: expected share of groups of this size that dynamic sampling keeps.
        max_dispatched: groups that it may dispatch in all.
        rate_groups: how many judged groups the acceptance rate counts as.
        carried_accepted: groups of the step before that were accepted when it began.
        carried_running: groups of the step before that were running when it began.
        dispatched: groups that it has dispatched.
        stopped: groups that were stopped before they could be judged.
        unused_tokens: of rollouts that no judged group has.
        verdicts: on the groups that were judged.
        given_up: prompts that will not be drawn again, since their groups never came back.
    """

    number: int
    group_size: int
    num_groups: int
    round: Round
    acceptance_rate: float
    max_dispatched: int
    rate_groups: float = PRIOR_GROUPS
    carried_accepted: int = 0
    carried_running: int = 0
    dispatched: int = 0
    stopped: int = 0
    unused_tokens: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    given_up: list[Prompt] = field(default_factory=list)

    @property
    def has_groups(self) -> bool:
        """Whether groups were there at its beginning or were dispatched since."""
        return self.carried_accepted + self.carried_running + self.dispatched > 0

    @property
    def keep_first(self) -> int | None:
        """Rollouts of a prompt that end its others as soon as they have finished; None lets all of them finish."""
        return self.group_size if self.round.rollouts > self.group_size else None

    @property
    def groups_rolled_out(self) -> int:
        """Groups in all, those carried over included; at least as many as a step without any drop has."""
        return max(self.carried_running + self.dispatched, self.num_groups)

    @property
    def dropped(self) -> Counter[str]:
        """Groups that were dropped, by reason."""
        return Counter(verdict.reason for verdict in self.verdicts if verdict.reason is not None)

    @property
    def pass_rate(self) -> float | None:
        """Share of the judged groups that were kept, in %; None if no group was judged."""
        if not self.verdicts:
            return None
        return 100 * sum(verdict.reason is None for verdict in self.verdicts) / len(self.verdicts)

    def rate(self, accepted: int) -> float:
        """The acceptance rate in the light of this step's verdicts: below the expected one as far as they leave no doubt.

        It never rises, and it falls no further than to the upper end of what the verdicts allow. So chance alone dispatches
        nothing more, and a step that expected too much asks for the rest in a few refills instead of one by one.
        """
        weight = self.rate_groups + len(self.verdicts)
        rate = (self.rate_groups * self.acceptance_rate + accepted - self.carried_accepted) / weight
        error = math.sqrt(max(rate * (1 - rate), 0.0) / weight)  # rounding can leave a rate above 1
        return min(self.acceptance_rate, rate + DEVIATIONS * error)

    def groups_to_dispatch(self, accepted: int, running: int) -> int:
        """How many groups to dispatch now, so that the accepted and the running ones will fill the step with a margin.

        None until they are one in SHARE of those that run: a call to an engine costs the same for one group and for many.
        """
        wanted = 0
        if accepted < self.num_groups:
            wanted = groups_to_ask(self.num_groups - accepted, self.rate(accepted))
            wanted = math.ceil(self.round.prompt_ratio * wanted - 1e-9)
        missing = max(min(wanted - running, self.max_dispatched - self.dispatched), 0)
        return missing if missing * SHARE >= running else 0

    def shortfall(self, accepted: int) -> str:
        """What the step dispatched, and why it has no more than `accepted` groups, for an error message."""
        reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in self.dropped.items())
        return (
            f"{self.dispatched} prompts of {self.group_size} samples gave {accepted} of the {self.num_groups} groups of "
            f"step {self.number + 1} (dropped: {reasons})"
        )
