"""One graph of a function with its executor, and trees of graphs that part where a tensor decides."""
