"""`horovodrun`: Horovod's command line, on top of `paceline run`."""
