"""The life of a call: the only place where all parts meet."""
