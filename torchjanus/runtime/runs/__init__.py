"""The watched runs of one function, its account of time, and what is kept of them."""
