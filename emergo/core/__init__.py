"""What every subpackage uses: the contract, pytrees, identity, errors, files and random numbers."""
