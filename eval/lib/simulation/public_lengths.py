"""Lengths of public rollouts."""

from lib.simulation.lengths import LogNormal

# Log-normal fits of published rollouts. The first has the lengths of the other parts. Of the others the spread is the line
# through the median and the quantiles of 0.9 and 0.99, where these are not cut off, and is split by the share of the
# variance of log lengths that lies between prompts.
SETS = {
    "R1-Distill-Llama-8B, MATH-500": LogNormal(median=955, between=1.3, within=0.48, cap=16384),
    "Qwen3-1.7B, GPQA": LogNormal(median=7384, between=0.48, within=0.25, cap=30000),
    "DeepScaleR-1.5B, AIME 2024": LogNormal(median=7752, between=0.37, within=0.30, cap=16384),
    "Qwen2.5-Math, MATH": LogNormal(median=266, between=0.38, within=0.21, cap=4096),
    "Qwen2.5-1.5B-Instruct, GSM8K": LogNormal(median=112, between=0.45, within=0.38, cap=1024),
}
