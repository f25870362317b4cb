"""cli: `python -m cli`, which is what ./nightbatch runs."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules are imported there is nothing to tidy, and nothing to say

from cli.app import main  # noqa: E402

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
