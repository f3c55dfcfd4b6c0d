"""Group control against fixed sizes: what a policy is compared with."""

import group_sizes
import pandas as pd
from group_sizes import EFFECTIVE


def test_a_policy_is_compared_with_the_fixed_sizes_that_meet_its_limit():
    policies = list(group_sizes.arms(0.2))
    assert policies[4:] == [group_sizes.FREE, "throughput, limit 0.2", "size, limit 0.2"]
    rates = [0.1, 0.15, 0.3, 0.5, 0.5, 0.2, 0.2]
    effective = [10.0, 20.0, 40.0, 30.0, 36.0, 18.0, 22.0]
    rows = zip(policies, rates, effective)
    table = pd.DataFrame([{"hold": "samples", "policy": p, "straggler rate": r, EFFECTIVE: e} for p, r, e in rows])
    assert group_sizes.with_shares(table, 0.2)["share of the best"].tolist() == [0.25, 0.5, 1, 0.75, 0.9, 0.9, 1.1]
    table["straggler rate"] = 0.5  # no size meets the limit: the smallest stands in
    assert group_sizes.with_shares(table, 0.2)["share of the best"].tolist()[5:] == [1.8, 2.2]
