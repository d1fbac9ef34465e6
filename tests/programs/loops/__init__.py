"""Loops whose trip counts change from call to call, over sequences, lists and the outputs of other loops."""
