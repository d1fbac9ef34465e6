"""Kinds of things that programs about the object model are made of; one function for each."""
