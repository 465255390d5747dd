"""Run the `emergo` command in a test."""

from emergo.cli import main


def call(capsys, *arguments):
    """Return exit status, standard output and standard error of one command."""
    status = 0
    try:
        main(list(arguments))
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsys.readouterr()
    return status, out, err
