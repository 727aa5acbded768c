"""The embedded engine: the pipelines of ``wantrn.model`` on ranks of this machine."""
