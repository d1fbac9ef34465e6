"""Co-execution: Python runs the program without its tensor work, and a graph of the whole step does that (Terra)."""
