"""How routing serves load that changes: traces of arrivals, and what routing costs on them against either engine."""
