"""`python -m loadtest.agreement`."""

from loadtest.agreement.cli import main

if __name__ == "__main__":
    main(prog_name="python -m loadtest.agreement")
