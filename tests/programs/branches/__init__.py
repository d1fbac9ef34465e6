"""Branches that tensors decide, alone and in loops: conditions, arms, what arms leave behind."""
