"""The arms of step_time.py, which predict_step_time.py simulates."""

# The parts of a faster step: flags of --train with what they are on and off.
SWITCHES = {"old_log_probs": ("auto", "forward"), "micro_batches": ("length", "shuffled"), "stream": ("auto", "off")}
UNPATCHED, ALL_ON, ALL_OFF = "unpatched", "all on", "all off"
ARMS = [UNPATCHED, ALL_ON, *(f"without {name}" for name in SWITCHES), ALL_OFF]
ARM = ["algorithm", "size", "arm"]  # columns of steps.csv that name one


def values_of(arm: str) -> dict[str, str]:
    """The values of the SWITCHES in an arm; unpatched OpenRLHF has none of the parts."""
    off = {name for name in SWITCHES if arm in (ALL_OFF, UNPATCHED, f"without {name}")}
    return {name: values[name in off] for name, values in SWITCHES.items()}
