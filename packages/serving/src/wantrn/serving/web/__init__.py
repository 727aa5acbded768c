"""The page that people use: plain files, and the routes that serve them."""
