"""What runs in the vLLM engines' actors and their worker processes: rollouts, rewards and drafts."""
