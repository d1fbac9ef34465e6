"""What is known of speculated functions, for people and programs: text, data, a page, a trace of the calls."""
