"""The parts of benchmark_group_advantage.py: its inputs, its half on the CPU and its half on the GPU."""
