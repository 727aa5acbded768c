"""The HTTP interface: OpenAI's videos API over the jobs of a server."""
