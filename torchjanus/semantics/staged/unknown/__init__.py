"""Values that are not known while a program is staged, what torch knows of them, and where the program keeps them."""
