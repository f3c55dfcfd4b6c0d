"""How many tokens an engine drafts in an iteration: as many as have paid, by its own iterations."""

FEW, MORE = 16, 4  # the smallest budget of an iteration in tokens, and times as much as each further one has
TRIES = 4  # iterations of each budget before the best one is taken
RETRIES = 0.01  # share of the time that goes to trying others again
LEAST_LOSS = 0.3  # of an iteration that a try is taken to cost at least
MEMORY = 0.1  # share of the last iteration in a mean
ODD = 3.0  # times the mean: no iteration, but a pause


class _Mean:
    """Tokens and milliseconds of the iterations with a budget."""

    def __init__(self) -> None:
        self.count, self.tokens, self.ms = 0, 0.0, 0.0

    def add(self, tokens: int, ms: float) -> None:
        self.count += 1
        share = max(MEMORY, 1 / self.count)
        ms = min(ms, ODD * self.ms) if self.count > TRIES else ms
        self.tokens += share * (tokens - self.tokens)
        self.ms += share * (ms - self.ms)

    @property
    def speed(self) -> float:
        return self.tokens / self.ms if self.ms else 0.0


class DraftBudget:
    """Chooses the budget of each iteration: for as many running requests, the one with the most tokens a millisecond.

    Verifying a draft costs nothing as long as an engine waits for its memory, and a token's computing where it is full. So
    each power of two of running requests learns which budget is the fastest, none among them. What pays changes with the
    lengths and with what is drafted: the others are tried now and then, which takes RETRIES of the time at most.

    Args:
        longest: tokens of a draft.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._means: dict[int, list[_Mean]] = {}
        self._saved: dict[int, float] = {}  # milliseconds that other budgets may take in vain
        self._turn = 0
        self._kind, self._tried = 0, _Mean()  # of the iteration that runs

    def choose(self, running: int) -> int:
        """Tokens that the next iteration may draft, of so many running requests."""
        self._kind = running.bit_length()
        budgets = [0, FEW]
        while budgets[-1] < self.longest << self._kind:
            budgets.append(budgets[-1] * MORE)
        means = self._means.setdefault(self._kind, [_Mean() for _ in budgets])
        new = [place for place, mean in enumerate(means) if mean.count < TRIES]
        place = new[-1] if new else self._best(means)
        self._tried = means[place]
        return min(budgets[place], running * self.longest)

    def note(self, tokens: int, ms: float) -> None:
        """The iteration of the last choice has sampled so many tokens in so many milliseconds."""
        self._tried.add(tokens, ms)
        self._saved[self._kind] = self._saved.get(self._kind, 0.0) + RETRIES * ms

    def _best(self, means: list[_Mean]) -> int:
        """The place of the fastest budget, or of another one whose turn it is and for whose loss enough is saved."""
        fastest = max(range(len(means)), key=lambda place: means[place].speed)
        other = (fastest + 1 + self._turn % (len(means) - 1)) % len(means)
        loss = means[other].ms - means[other].tokens / max(means[fastest].speed, 1e-9)
        if self._saved.get(self._kind, 0.0) < max(loss, LEAST_LOSS * means[fastest].ms):
            return fastest
        self._saved[self._kind] = 0.0
        self._turn += 1
        return other
