"""Small programs that once gave another result than eager."""
