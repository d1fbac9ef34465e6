"""Models of containers during a watched run: shadows of old ones, and the structure of new objects."""
