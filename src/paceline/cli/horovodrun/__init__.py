"""`paceline-horovodrun`: Horovod's command line, on top of `paceline run`. It has a name of its own, because a file
`horovodrun` would replace that of an installed Horovod."""
