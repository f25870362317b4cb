"""cli: `python -m cli`, which is what ./nightbatch runs."""

from cli.app import main

if __name__ == "__main__":
    main()
