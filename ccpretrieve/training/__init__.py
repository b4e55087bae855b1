"""What makes a model better: one loop, and the objectives that run on it."""
