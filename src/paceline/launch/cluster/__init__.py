"""Several hosts: one controller decides, and an agent on each host starts and watches the workers there."""
