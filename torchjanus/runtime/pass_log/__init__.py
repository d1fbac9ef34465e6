"""What each pass gave, as text: for ``TORCHJANUS_DUMP`` and ``torchjanus debug``."""
