"""The zygote, with what torch imports late already imported: `python warm_zygote.py FD`.

The first optimizer of a process imports torch._dynamo, which takes longer than most scripts here.
"""

import torch._dynamo  # noqa: F401

from paceline.launch.zygote.process import main

if __name__ == "__main__":
    main()
