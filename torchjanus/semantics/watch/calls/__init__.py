"""Watch recursive calls one by one, each with a trace of its own."""
