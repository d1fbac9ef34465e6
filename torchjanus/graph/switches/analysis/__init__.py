"""What the arms of traced iterations did, and which variables they hand on."""
