"""A calibration told to people: as a page with plots, as Markdown, and the sentences both share. Pure."""
