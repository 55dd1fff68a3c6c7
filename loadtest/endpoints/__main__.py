"""`python -m loadtest.endpoints`."""

from loadtest.endpoints.cli import main

if __name__ == "__main__":
    main(prog_name="python -m loadtest.endpoints")
