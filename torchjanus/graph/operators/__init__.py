"""Custom operators, and functions that replace those of torch that cannot be traced."""
