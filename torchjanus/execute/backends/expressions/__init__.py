"""S-expressions: a staged graph as a small functional program, an interpreter of its text, and a compiler to C++."""
