"""Traces with known moments."""

import numpy as np


def write_trace(path, *, prompts=60, samples=16, between=1.0, within=0.5, median=300, success=0.5, seed=0):
    """Lognormal tokens with these standard deviations of the logarithm, between prompts and within; the path.

    Prompts are solved with chances around `success`, or nothing is said of it if that is None.
    """
    generator = np.random.default_rng(seed)
    logs_P = np.log(median) + between * generator.standard_normal((prompts, 1))
    tokens = np.exp(logs_P + within * generator.standard_normal((prompts, samples))).astype(int)
    chances_P = None if success is None else generator.beta(2 * success, 2 - 2 * success, (prompts, 1))
    right = None if success is None else (generator.random(tokens.shape) < chances_P).astype(int)
    lines = ["prompt_id,sample_id,tokens" + ("" if success is None else ",correct")]
    for prompt, row in enumerate(tokens):
        for sample, count in enumerate(row):
            lines.append(f"p{prompt},{sample},{count}" + ("" if success is None else f",{right[prompt, sample]}"))
    path.write_text("\n".join(lines) + "\n")
    return path
