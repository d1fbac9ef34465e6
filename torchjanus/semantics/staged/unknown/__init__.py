"""Values that are not known while a program is staged, what torch tells of them, and where the program keeps them."""
