"""Calls that leave what is watched: extern calls, what they reach, and when they are made."""
