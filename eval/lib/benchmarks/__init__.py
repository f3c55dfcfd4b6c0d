"""What on_gpu.py measures: per-token advantages, and a policy step in buckets."""
