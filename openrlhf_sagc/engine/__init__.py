"""What runs inside Ray actors: in those of the vLLM engines and in those of the policy."""
