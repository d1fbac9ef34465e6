"""The text form of a tree: printed and parsed back. Its grammar is in docs/design/tracegraph.md."""
