"""What every part needs: errors, access paths, versions, and safe questions about objects of Python and torch.

It imports no other part.
"""
