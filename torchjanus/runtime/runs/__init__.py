"""Records of one function's watched runs, and its budget for learning."""
