"""cli: the command line. Parses, calls one function of another room, prints. Imports the other rooms only when a command needs them."""
