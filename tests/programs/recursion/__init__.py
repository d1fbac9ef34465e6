"""Functions that call themselves: arguments, results, counters and state of recursive calls."""
