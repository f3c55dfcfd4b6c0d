"""Costs in simple numbers."""

from lib.simulation.costs import CostModel


def costs_of(**fields):
    defaults = dict.fromkeys(CostModel.__dataclass_fields__, 0.0)
    defaults |= {
        "decode_base": 1.0,
        "max_running": 1000,
        "kv_limit": 10**6,
        "gpus_per_engine": 1,
        "tokens_per_iteration": 1.0,
    }
    return CostModel(**defaults | fields)
