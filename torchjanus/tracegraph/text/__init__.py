"""The text form of a tree: printed, parsed back, hashed. Its grammar is in docs/design/tracegraph.md."""
