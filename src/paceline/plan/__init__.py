"""Predicts steps on a cluster that is not there: a record's workload, a cluster's links, and a model of one step."""
