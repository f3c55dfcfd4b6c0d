"""What is decided: pure state machines and records, without Ray, torch, a clock or randomness."""
