"""The graphs of co-executed paths: the program of a path, when its stages run, and how they are tried."""
