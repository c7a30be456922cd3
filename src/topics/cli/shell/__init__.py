"""What all commands share: how they are declared, whom they talk to, what they print, how they end.

    invoking      a function as a command: the options that all have, errors as messages and exit codes
    contexts      servers by name, in a file of the user
    exits         the exit codes
    display       tables, records, JSON lines
    quantities    sizes, times, tags and positions as people write them
    completing    names for the shell's completion
    manual        the help by sections, and the same as a page

Nothing here knows a single command. pyarrow, Spark, the server and rich are imported by the commands that need them,
when they run.
"""
