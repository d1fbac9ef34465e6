"""What changes from call to call of a step: state, types, sizes, numbers, caches."""
