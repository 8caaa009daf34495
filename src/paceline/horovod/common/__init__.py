"""The modules that scripts import as `horovod.common`: Horovod gave them this name."""
