"""`python -m loadtest.bench`."""

from loadtest.bench.cli import main

if __name__ == "__main__":
    main(prog_name="make bench")
