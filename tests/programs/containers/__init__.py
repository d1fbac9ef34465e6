"""Lists, dictionaries, sets, deques and their kin: keys, views, iteration, comparison."""
