"""What runs in the trainer's driver process: the scheduler on Ray and vLLM, and the experience maker."""
