"""One entry's call as generated Python: guards, inputs, numbers, results, commit."""
