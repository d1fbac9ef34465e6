"""Work beside the training: lowering and compiling elsewhere, and in which order."""
