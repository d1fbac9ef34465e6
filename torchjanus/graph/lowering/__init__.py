"""A tensor program becomes one functional ATen graph, ready for executors, and bytes for other processes."""
