"""The corpus: small imperative programs in folders by topic, each run eagerly and speculated, and compared.

``README.md`` lists the files. ``harness.py`` runs the programs; ``tests/test_programs.py`` is the test.
"""
