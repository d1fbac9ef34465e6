"""The calls of a function: as a whole, between statements that are Python's, or in parts that are speculated on."""
