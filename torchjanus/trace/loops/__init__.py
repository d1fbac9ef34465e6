"""What is known of a run's loops, as data: their iterations, and what these computed with untraced numbers."""
