"""Watch a call: run the rewritten program on real values and record a trace (JANUS, section 4.1)."""
