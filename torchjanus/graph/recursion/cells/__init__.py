"""The segments of variants as ATen graphs for any number of calls at once."""
