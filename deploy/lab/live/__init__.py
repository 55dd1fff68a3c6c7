"""Live routing on a pair of embedded engines: `python -m deploy.lab.live PAIR`."""
