"""What every part needs: errors, access paths, versions, and what Python and torch say of objects.

Imports no part.
"""
