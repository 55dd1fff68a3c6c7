"""What a calibration planned, measured and found: values and their JSON, checks on them, comparisons of them."""
