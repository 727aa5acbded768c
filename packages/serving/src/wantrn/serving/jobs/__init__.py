"""Jobs in one place: their records, states, queue, files and expiry."""
