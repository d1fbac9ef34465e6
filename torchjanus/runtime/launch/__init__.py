"""One entry's call as generated Python: guards, inputs, host numbers, results, commit."""
