"""Lists, dictionaries, sets, deques and related containers: keys, views, iteration, comparison."""
