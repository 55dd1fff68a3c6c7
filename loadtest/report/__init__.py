"""A calibration for people: a page with plots, Markdown, a spreadsheet, and the sentences that all of them share."""
