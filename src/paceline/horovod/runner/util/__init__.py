"""Parts of `horovod.runner` that scripts and Horovod's own tests import."""
