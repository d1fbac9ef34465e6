"""What a graph takes for granted, how to check it and how to explain it. Knows nothing of graphs."""
