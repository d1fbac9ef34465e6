"""What the watched runs taught: when to watch, when graphs are made, weakened or dropped."""
