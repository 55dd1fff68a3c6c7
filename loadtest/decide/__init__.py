"""Where two backends cross, how surely, and what to measure next. Pure: trials in, a finding or a level out."""
