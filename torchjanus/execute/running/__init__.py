"""What every executor needs: the interface, the gate before a commit, and graphs printed as Python."""
