"""What is known of foreign and native code, as plain data: what is trusted, what only reads, what may run user code."""
