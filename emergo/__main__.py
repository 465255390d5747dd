"""The program of `python -m emergo`: the same as `emergo`."""

try:
    from .cli import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

main()
