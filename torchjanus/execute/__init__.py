"""Ways to run a lowered graph. Knows nothing of traces, guards or Python programs."""
