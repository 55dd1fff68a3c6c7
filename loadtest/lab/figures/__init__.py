"""What the data plane's benchmark measured: measurements, medians and ratios of them, claims, the report. Pure."""
