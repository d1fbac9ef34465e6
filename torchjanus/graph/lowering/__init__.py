"""Lower a tensor program to one functional ATen graph; prepare it for executors and serialise it."""
