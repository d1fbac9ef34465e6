"""Analysis of traced iterations: the arms they took, the effects of each arm, and the loop-carried variables."""
