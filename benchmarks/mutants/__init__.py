"""Mutation testing: compare how many seeded faults two versions of the test suite detect."""
