"""Straggler-aware group control for OpenRLHF's PPO/GRPO trainer."""

__version__ = "0.1.0"
