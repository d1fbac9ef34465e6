"""What a watched run did, as data. Knows nothing of how it was watched or what will be made of it."""
