"""What makes videos for the jobs of a server."""
