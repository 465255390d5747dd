"""Shared parts: the contract, pytrees, identities, errors, files and random numbers."""
