"""What runs in the policy's actors: the training of a step, and its weights on their way out."""
