"""What each command does, apart from reading the command line; one module each."""
