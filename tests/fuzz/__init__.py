"""A differential fuzzer: made-up imperative programs, run eagerly and speculated, and compared after every call."""
