"""Watching: the program runs for real while a trace is recorded (JANUS 4.1)."""
