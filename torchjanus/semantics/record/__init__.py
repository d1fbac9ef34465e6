"""The trace in the making: what a run has met and written, and what its variables held."""
