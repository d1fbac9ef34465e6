"""Everything that can fail in the entries of the corpus is made to fail; the outcome must stay eager's."""
