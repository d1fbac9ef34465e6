"""Steps whose calls never take the same path twice: operators and segments that all paths share."""
