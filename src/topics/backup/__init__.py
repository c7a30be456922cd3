"""Backups: a data directory in another place, as of log positions, and the way back.

    layout      what lies where in a backup, and what its names say
    places      where a backup lies: a directory, an archive, a file system of pyarrow
    sources     the stream of a backup, from a server or from a data directory
    receiving   the stream becomes objects of a place, and points
    points      the points of a backup: which there are, what is in one, whether it is whole
    restoring   a point becomes a data directory

What is shipped, and how a position is made consistent, is up to `engine.durability.shipping`. No object is ever changed
or removed; each is there as a whole or not at all, and its name has its checksum. A point counts once its description
is there, which is written last. pyarrow is imported only by what needs it.
"""
