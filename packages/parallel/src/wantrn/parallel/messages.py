"""What ranks and their supervisor say to each other, a byte each."""

FAILED = b"F"
"""From a rank: it has an error of its own."""
LOST = b"L"
"""From a rank: it has an error that may come from another rank's end."""
TELL = b"T"
"""To a rank: let the error out."""
