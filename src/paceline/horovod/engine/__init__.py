"""What Horovod's C++ core does: negotiation by name, fusion, the response cache, stall reports, the timeline."""
