"""What on_gpu.py asks of a GPU node: a module each for checks that need the same."""
