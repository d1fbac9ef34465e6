"""Work beside the training: lowering and compiling in other processes, and the queue of it."""
