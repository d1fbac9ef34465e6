"""Traces of one path become one tensor program with assumptions (JANUS 4.2)."""
