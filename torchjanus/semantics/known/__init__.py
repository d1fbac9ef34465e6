"""What is known of foreign and native code, as plain data:
what is trusted, what only looks, what may run the program's own code."""
