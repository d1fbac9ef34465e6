"""How each construct of Python is rewritten so that it asks a hook: one module for each construct."""
